// SPDX-License-Identifier: Apache-2.0
#include <pagoda/reference.hpp>

#include <algorithm>
#include <cmath>

namespace pagoda::reference {

namespace {

/// A compensated sum (Knuth's two-sum). Over a million tokens a plain sum would be less exact than the fp64 kernels
/// that are compared with it.
struct Sum {
  double value = 0, lost = 0;
  void add(double x) {
    const double sum = value + x, added = sum - value;
    lost += (value - (sum - added)) + (x - added);
    value = sum;
  }
  double total() const { return value + lost; }
};

}  // namespace

Row attend(std::span<const double> q, int seq_len, int position, int head_dim_v, const ReadRow& key,
           const ReadRow& value, const RowOptions& o) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  Row row;
  row.out.assign(head_dim_v, 0.0);
  row.probabilities.assign(seq_len, 0.0);
  std::vector<double> scores(seq_len, -infinity), conditions(seq_len, 0.0), buffer(q.size());

  const auto visible = [&](int t) {
    if (o.causal && t > position) return false;
    return o.window_left < 0 || t >= position - o.window_left || t < o.num_initial_tokens;
  };
  double most = o.sink;  // largest score that is a number: std::max keeps `most` if the other is NaN
  bool nan    = std::isnan(o.sink);
  if (nan) most = -infinity;
  for (int t = 0; t < seq_len; ++t) {
    if (!visible(t)) continue;
    key(t, buffer);
    double dot = 0, magnitude = 0;
    for (std::size_t d = 0; d < q.size(); ++d) dot += q[d] * buffer[d], magnitude += std::abs(q[d] * buffer[d]);
    double s = dot * o.softmax_scale;
    if (o.logit_soft_cap > 0) s = o.logit_soft_cap * std::tanh(s / o.logit_soft_cap);
    s += o.alibi_slope * (t - position);
    scores[t]     = s;
    conditions[t] = magnitude * std::abs(o.softmax_scale) + std::abs(o.alibi_slope * (t - position));
    most          = std::max(most, s);
    nan           = nan || std::isnan(s);
  }
  if (most == -infinity && !nan) {
    row.lse = -infinity;
    return row;
  }

  if (most == -infinity) most = 0;
  Sum sum;
  sum.add(std::exp(o.sink - most));
  for (int t = 0; t < seq_len; ++t) sum.add(row.probabilities[t] = std::exp(scores[t] - most));
  row.lse = most + std::log(sum.total());
  buffer.resize(head_dim_v);
  std::vector<Sum> out(head_dim_v);
  std::vector<double> spreads(head_dim_v, 0.0);
  double condition = 0, spread = 0, norm = 0;
  for (int t = 0; t < seq_len; ++t) {
    double& p = row.probabilities[t];
    p /= sum.total();
    if (!visible(t)) continue;  // a visible NaN value makes the result NaN even if p is 0
    value(t, buffer);
    for (int d = 0; d < head_dim_v; ++d) out[d].add(p * buffer[d]);
    for (int d = 0; d < head_dim_v; ++d) spreads[d] += p * p * buffer[d] * buffer[d];
    if (p != 0) condition += p * conditions[t] * conditions[t];
  }
  for (int d = 0; d < head_dim_v; ++d) {
    row.out[d] = std::isnan(row.lse) ? row.lse : out[d].total();
    if (std::isfinite(row.out[d])) norm += row.out[d] * row.out[d], spread += spreads[d];
  }
  row.norm            = std::sqrt(std::max(norm, spread));
  row.score_condition = std::sqrt(condition);
  return row;
}

double tolerance(const Row& row, DType probability, DType output, DType arithmetic) {
  return 2 * (unit_roundoff(probability) + unit_roundoff(output) +
              unit_roundoff(arithmetic) * (1 + 2 * row.score_condition));
}

}  // namespace pagoda::reference
