// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/export.hpp>
#include <pagoda/kv_layout.hpp>
#include <pagoda/types.hpp>

#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <vector>

/// @file
/// Attention in float64 on the host, term by term as in the equation: all scores, their maximum, their exponentials,
/// the weighted sum. It is slow on purpose; every kernel is compared with it.
/// Source: Heidari et al., equation 1 and section III.A (CPU reference).

/// Attention in float64.
namespace pagoda::reference {

/// Options that change the scores of one query row; see DecodeOptions.
struct RowOptions {
  double softmax_scale   = 1.0;   ///< multiplies the product of query and key
  bool causal            = true;  ///< tokens behind `position` are hidden
  int window_left        = -1;    ///< tokens before `position` that are visible; -1: all
  int num_initial_tokens = 0;     ///< first tokens that stay visible besides the window
  double logit_soft_cap  = 0.0;   ///< 0: off
  double alibi_slope     = 0.0;   ///< slope of the row's query head
  double sink            = -std::numeric_limits<double>::infinity();  ///< logit of an extra token with value 0
};

/// The result of attention for one query row, and the norms that its error is relative to.
struct Row {
  std::vector<double> out;            ///< [head_dim_v]
  double lse = 0;                     ///< natural logarithm; -infinity if no token is visible
  std::vector<double> probabilities;  ///< [seq_len], 0 for masked tokens
  /// Root mean square, weighted by the probabilities, of sum_d |q_d k_d| * softmax_scale. The rounding error of one
  /// product is multiplied by it in a score, and hence in the relative error of a probability.
  double score_condition = 0;
  /// Errors of `out` are relative to this number: the L2 norm of `out` or, if larger, sqrt(sum_t p_t^2 |v_t|^2), the
  /// norm that values of random sign would have.
  double norm = 0;
};

/// Function that fills a row of head_dim (or head_dim_v) numbers with the key (or value) of a token.
using ReadRow = std::function<void(int token, std::span<double> row)>;

/// Computes attention of one query row. q: [head_dim]. position: index of the query's own token in its sequence, which
/// is seq_len - 1 for the newest token. key and value: read the KV rows of tokens 0 to seq_len - 1.
PAGODA_EXPORT Row attend(std::span<const double> q, int seq_len, int position, int head_dim_v, const ReadRow& key,
                         const ReadRow& value, const RowOptions& options);

/// The largest error that a correct kernel may have for this row: of out as an L2 norm relative to Row::norm, and of
/// lse as an absolute number. It is twice the rounding error of the probabilities and of the output. A probability is
/// rounded to the type `probability`; its score has the rounding errors of its products, and the same again for their
/// sums, in the type `arithmetic` (fp64 for fp64 caches, else fp32). The output is rounded to the type `output`.
PAGODA_EXPORT double tolerance(const Row& row, DType probability, DType output, DType arithmetic = DType::fp32);

}  // namespace pagoda::reference
