// SPDX-License-Identifier: Apache-2.0
#include "tests/support/compare.hpp"

#include "tests/support/spaces.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

namespace pagoda::test {

namespace {

/// Magnitudes below this may become 0 when stored.
double smallest_number(DType type) {
  return type == DType::fp64 ? 0x1p-1022 : type == DType::fp16 ? 0x1p-24 : 0x1p-126;
}

/// Error of an output row relative to Row::norm from probabilities that underflow. They are stored relative to the
/// largest one, which may be the sink's.
double underflow_of(const reference::Row& row, DType probability) {
  double sum = 0, squares = 0, largest = 0;
  for (const double p : row.probabilities) sum += p, squares += p * p, largest = std::max(largest, p);
  if (squares == 0) return std::numeric_limits<double>::infinity();
  largest = std::max(largest, 1 - sum);
  return smallest_number(probability) * std::sqrt(static_cast<double>(row.probabilities.size()) / squares) * largest;
}

}  // namespace

template <class Space, class T>
Comparison compare(const Sample<T>& sample, const Array<Space>& out, const Array<Space>* lse, DType probability,
                   int truncated_steps, double leeway, bool rounds_numbers) {
  const Shape& shape     = sample.shape();
  const DType arithmetic = dtype_v<accumulator_t<T>>;
  // Kernels that round probabilities also round factors of products: a query of a wider type than the cache's becomes
  // two numbers of the cache's type, with twice its precision.
  const double query_rounding =
      probability != arithmetic && !rounds_numbers && (sample.shape().q_type || is_quantized_v<T>)
          ? std::pow(unit_roundoff(probability), 2)
          : 0;
  Comparison result;
  std::ostringstream report;
  const auto complain = [&](int token, int head, const auto&... text) {
    if (++result.wrong > 5) return;
    const int b = sample.entry_of(token);
    report << "\n  batch entry " << b << " (" << shape.lengths[b] << " tokens), query token "
           << token - sample.query_begin(b) << ", head " << head << ": ";
    (report << ... << text);
  };
  for (int token = 0; token < sample.query_tokens(); ++token) {
    for (int h = 0; h < shape.num_q_heads; ++h) {
      const reference::Row& row = sample.rows(rounds_numbers)[sample.row_of(token, h)];
      double error              = 0;
      for (int d = 0; d < sample.head_dim_v(); ++d) {
        const double got = out.get({token, h, d}), right = row.out[d];
        if (std::isfinite(right)) {
          error += std::pow(got - right, 2);
        } else if (std::isfinite(got)) {
          complain(token, h, "out is ", got, " in dim ", d, "; right: ", right);
        }
      }
      error                  = std::sqrt(error);
      const double of_scores = 2 * query_rounding * (1 + 2 * row.score_condition);
      const double allowed   = leeway * (reference::tolerance(row, probability, out.type(), arithmetic) + of_scores);
      if (row.norm == 0) {  // a row that sees no value is exactly 0
        if (!(error == 0)) complain(token, h, "out differs from 0 by ", error);
      } else {
        result.worst           = std::max(result.worst, error / row.norm / allowed);
        const double underflow = smallest_number(out.type()) * std::sqrt(sample.head_dim_v());
        if (!(error <= (allowed + underflow_of(row, probability)) * row.norm + underflow))
          complain(token, h, "out is off by ", error / row.norm, " of itself; allowed ", allowed);
      }

      if (!lse) continue;
      const double got = lse->get({token, h});
      if (std::isnan(row.lse)) {
        if (!std::isnan(got)) complain(token, h, "lse is ", got, "; expected NaN, for a visible key is");
        continue;
      }
      // Besides the error of the scores, a log-sum-exp is rounded in the arithmetic and in its own type.
      const double rounding = std::max(unit_roundoff(lse->type()), unit_roundoff(arithmetic));
      // Truncation errors have the same sign, up to a unit in the last place at each step.
      const double truncation =
          truncated_steps * 2 * unit_roundoff(arithmetic) * std::max(std::abs(row.lse), row.score_condition);
      const double off = leeway * (reference::tolerance(row, arithmetic, lse->type(), arithmetic) + of_scores +
                                   truncation + 2 * rounding * std::abs(row.lse));
      if (std::isnan(row.lse) != std::isnan(got) ||
          (std::isinf(row.lse) ? got != row.lse : !std::isnan(got) && !(std::abs(got - row.lse) <= off)))
        complain(token, h, "lse is ", got, ", off by ", std::abs(got - row.lse), " from ", row.lse, "; allowed: ", off);
    }
  }
  if (result.wrong > 5) report << "\n  ...";
  if (result.wrong > 0) report << "\n  " << result.wrong << " of " << 2 * sample.rows().size() << " rows are wrong";
  result.report = report.str();
  return result;
}

#define PAGODA_TEST_COMPARE_ON(Space, T)                                                                        \
  template Comparison compare<Space, T>(const Sample<T>&, const Array<Space>&, const Array<Space>*, DType, int, \
                                        double, bool);
#define PAGODA_TEST_ON_DEVICE(name) PAGODA_TEST_COMPARE_ON(Device, pagoda::detail::type_##name)
PAGODA_TEST_FOR_EACH_TYPE(PAGODA_TEST_ON_DEVICE)
#undef PAGODA_TEST_ON_DEVICE
#if defined(KOKKOS_ENABLE_DEFAULT_DEVICE_TYPE_CUDA) || defined(KOKKOS_ENABLE_DEFAULT_DEVICE_TYPE_HIP)
#define PAGODA_TEST_ON_HOST(name) PAGODA_TEST_COMPARE_ON(Host, pagoda::detail::type_##name)
PAGODA_TEST_FOR_EACH_TYPE(PAGODA_TEST_ON_HOST)
#undef PAGODA_TEST_ON_HOST
#endif

}  // namespace pagoda::test
