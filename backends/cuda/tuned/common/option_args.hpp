// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace pagoda::tuned {

/// What kernels with score options read besides the arguments of other kernels, of which `Base` is the structure.
/// Scores are logarithms to base 2, and so are soft caps and biases; slopes and sinks are the caller's, for the natural
/// base.
template <class Base>
struct OptionArgsOf : Base {
  int window_left;    ///< tokens before the query token that it sees; the largest int: all
  int initial_tiles;  ///< tiles that hold the initial tokens; the largest int without a window
  int num_initial_tokens;
  float soft_cap, inverse_soft_cap;  ///< 0: off
  const float* alibi_slopes;         ///< [query heads]; null: none
  const float* sinks;                ///< [query heads]; null: none
};

}  // namespace pagoda::tuned
