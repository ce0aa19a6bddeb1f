// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Constants of the online softmax that all GPU kernels use. Scores are logarithms to base 2.
namespace pagoda::detail {

/// A running maximum is raised only when a score exceeds it by more than this. Until then probabilities are at most
/// 2^8, which 16-bit types hold, and neither sums nor outputs are rescaled.
inline constexpr float rescale_threshold = 8.0f;

/// The running maximum of a query row that has seen no token: lower than any score, but finite, so that differences
/// with it are numbers.
inline constexpr float initial_max = -1e30f;

/// The probability of a token that a query row does not see. It differs from a probability that underflows in the sign
/// only, so products with finite values need no special case.
inline constexpr float hidden_probability = -0.0f;

}  // namespace pagoda::detail
