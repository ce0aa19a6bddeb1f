// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/common/launch.hpp"
#include "backends/cuda/tuned/common/option_args.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numbers>

/// What the launchers of kernels with score options share.
namespace pagoda::tuned {

/// Tiles of the initial tokens that stay visible besides a window.
inline std::int64_t initial_tiles_of(const Problem& p, int tile_tokens) {
  return (std::int64_t(p.options.num_initial_tokens) + tile_tokens - 1) / tile_tokens;
}

/// Tiles that are read of the longest sequence that there may be.
inline std::int64_t max_visible_tiles(const Problem& p, int tile_tokens) {
  const std::int64_t all = max_tiles(p, tile_tokens);
  if (p.options.window_left < 0) return all;
  const std::int64_t before_last = std::int64_t(p.options.window_left) + p.max_q_tokens - 1;
  const std::int64_t window      = (before_last + tile_tokens - 1) / tile_tokens + 1;
  return std::min(all, initial_tiles_of(p, tile_tokens) + window);
}

template <class Base>
void set_options(const Problem& p, int tile_tokens, OptionArgsOf<Base>& a) {
  const ScoreOptions& o = p.options;
  constexpr int all     = std::numeric_limits<int>::max();
  const bool window     = o.window_left >= 0;
  a.window_left         = window ? o.window_left : all;
  a.initial_tiles       = window ? static_cast<int>(initial_tiles_of(p, tile_tokens)) : all;
  a.num_initial_tokens  = o.num_initial_tokens;
  if (o.logit_soft_cap > 0) {
    // Caps beyond 2^100 change no score. Up to there the reciprocal is a normal number.
    const double cap = std::min(o.logit_soft_cap * std::numbers::log2e, 0x1p100);
    a.soft_cap = static_cast<float>(cap), a.inverse_soft_cap = static_cast<float>(1 / cap);
  }
  a.alibi_slopes = o.alibi_slopes, a.sinks = o.sinks;
}

}  // namespace pagoda::tuned
