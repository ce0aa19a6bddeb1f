// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/common/args.hpp"

namespace pagoda::tuned::warp {

/// What the kernels with score options read. Scores are logarithms to base 2, and so are soft caps and biases; slopes
/// and sinks are the caller's, for the natural base.
struct OptionArgs : Args {
  int window_left;    ///< tokens before the query token that it sees; the largest int: all
  int initial_tiles;  ///< tiles that hold the initial tokens; the largest int without a window
  int num_initial_tokens;
  float soft_cap, inverse_soft_cap;  ///< 0: off
  const float* alibi_slopes;         ///< [query heads]; null: none
  const float* sinks;                ///< [query heads]; null: none
};

/// The same as Base, which is Args or OptionArgs, for entries with different numbers of query tokens: one or none.
template <class Base>
struct RaggedArgs : Base {};

}  // namespace pagoda::tuned::warp
