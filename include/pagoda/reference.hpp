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

/// Attention in float64 on the host, written as the equation stands: all scores, their maximum, their exponentials, the
/// weighted sum. Slow and plain on purpose; every kernel is held against it.
/// Source: Heidari et al., equation 1 and section III.A (CPU reference).
namespace pagoda::reference {

/// What changes the scores of one query row, already picked out for its head.
struct RowOptions {
  double softmax_scale   = 1.0;
  bool causal            = true;
  int window_left        = -1;
  int num_initial_tokens = 0;
  double logit_soft_cap  = 0.0;
  double alibi_slope     = 0.0;
  double sink            = -std::numeric_limits<double>::infinity();
};

struct Row {
  std::vector<double> out;            ///< [head_dim_v]
  double lse = 0;                     ///< natural logarithm; -infinity where nothing is visible
  std::vector<double> probabilities;  ///< [seq_len], 0 for masked tokens
  /// Root mean square, over the probabilities, of sum_d |q_d k_d| * softmax_scale: by how much the rounding of one
  /// product is amplified in a score, hence (relatively) in a probability.
  double score_condition = 0;
  /// What an error of `out` is relative to: its L2 norm or, where values happen to cancel to less (which a single dim
  /// often does), the sqrt(sum_t p_t^2 |v_t|^2) that values of random sign would leave.
  double norm = 0;
};

/// Fills a row of head_dim (or head_dim_v) numbers with the key (or value) of a token.
using ReadRow = std::function<void(int token, std::span<double> row)>;

/// One query row at `position` of its sequence (its own token's index; seq_len - 1 for the newest).
PAGODA_EXPORT Row attend(std::span<const double> q, int seq_len, int position, int head_dim_v, const ReadRow& key,
                         const ReadRow& value, const RowOptions& options);

/// Largest L2 error in terms of Row::norm (and absolute error of lse) that a correct kernel may show for this row:
/// twice the rounding of the probabilities and of the output. A probability is rounded to `probability`, and carries
/// the rounding of its score: of the products, and as much again of the sums they pass through, in `arithmetic` (float
/// for all but fp64 caches). The latter only shows where both others are as fine.
PAGODA_EXPORT double tolerance(const Row& row, DType probability, DType output, DType arithmetic = DType::fp32);

}  // namespace pagoda::reference
