// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/ptx.cuh"
#include "backends/cuda/tuned/common/args.hpp"
#include "src/kernel/online_softmax.hpp"

#include <numbers>

/// Finished query rows: the factor of their outputs, attention sinks, and log-sum-exps.
namespace pagoda::tuned {

using namespace ptx;
using detail::initial_max;
using detail::rescale_threshold;

/// Stores the log-sum-exp of a finished query row as element i of to.lse. A sum of 0 means that the row sees no token.
/// A NaN stays a NaN.
PAGODA_DEVICE void store_lse_at(const auto& to, std::int64_t i, float row_max, float row_sum) {
  const float lse = row_sum == 0 ? -INFINITY : (row_max + __log2f(row_sum)) * std::numbers::ln2_v<float>;
  if (to.lse_double) {
    static_cast<double*>(to.lse)[i] = lse;
  } else {
    static_cast<float*>(to.lse)[i] = lse;
  }
}

/// Factor of outputs: 0 for a row that sees no token, NaN for a NaN sum.
PAGODA_DEVICE float output_weight(float sum) { return sum == 0 ? 0 : reciprocal(sum); }

/// The factor of a row's outputs, and its softmax state with the attention sink: a token without a value.
struct FinishedRow {
  float weight, row_max, row_sum;

  /// to: where results go. head: query head.
  PAGODA_DEVICE FinishedRow(const auto& to, int head, float max, float sum)
      : weight(output_weight(sum)), row_max(max), row_sum(sum) {
    if constexpr (requires { to.sinks; }) {
      if (!to.sinks) return;
      const float sink = __ldg(to.sinks + head) * std::numbers::log2e_v<float>;  // base 2, as `max` is
      row_max          = fmaxf(max, sink);
      const float old  = exp2_fast(max - row_max);
      row_sum          = sum * old + exp2_fast(sink - row_max);
      // A row that sees no token has no values to weight, but a NaN sink makes its output NaN, too.
      const bool is_number = row_sum == row_sum;
      weight               = sum == 0 && is_number ? 0 : old * output_weight(row_sum);
    }
  }
};

}  // namespace pagoda::tuned
