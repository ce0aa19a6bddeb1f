// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Constants of the online softmax that all CUDA kernels use. Scores are logarithms to base 2.
namespace pagoda::detail {

/// A running maximum is raised only when a score exceeds it by more than this. Until then probabilities are at most
/// 2^8, which 16-bit types hold, and neither sums nor outputs are rescaled.
inline constexpr float rescale_threshold = 8.0f;

/// The running maximum of a query row that has seen no token: lower than any score, but finite, so that differences
/// with it are numbers.
inline constexpr float initial_max = -1e30f;

}  // namespace pagoda::detail
