// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/warp/list_tuning.hpp"
#include "backends/cuda/tuned/wgmma/grouped/list_tuning.hpp"

#include <algorithm>

/// The kernel for lists whose entries have many query rows or few: the shape of its blocks, as data and pure functions.
namespace pagoda::tuned::wgmma::grouped {

/// Two warpgroups, so that registers can be moved between them: the second one does not multiply.
inline constexpr int mixed_threads = 256;
/// Warps that carry out entries of few rows: as many on a multiprocessor as in the kernel for such entries alone.
inline constexpr int mixed_few_warps = 4;
static_assert(mixed_few_warps * blocks_per_sm(1) == warp::list_warps);
/// Registers of threads that multiply, in either role.
inline constexpr int many_registers = 160, few_registers = 232;

/// Bytes of a tile of entries of few rows, and stages of the ring of a warp that carries them out.
constexpr int mixed_tile_bytes(int head_dim) { return warp::tile_tokens * head_dim * 2; }
constexpr int mixed_stages(int head_dim) { return warp::list_stages(mixed_tile_bytes(head_dim)); }

/// Shared memory of a block: that of the larger role.
constexpr int mixed_shared_bytes(Type type, int head_dim) {
  const int few =
      warp::list_layout(mixed_tile_bytes(head_dim), head_dim, mixed_stages(head_dim), mixed_few_warps).bytes;
  return std::max(list_layout(type, head_dim, 1).bytes, few);
}

/// The time of a unit of entries of many rows, in units of entries of few: the fastest factor of five over 18 trees
/// with three kinds of heads (bench/NOTES.md, "One launch with two roles").
inline constexpr float many_unit_time = 1.7f;

/// Blocks for entries of many rows: their part of the time, in multiples of `step`, a divisor of `blocks`. The others
/// have entries of few rows.
PAGODA_HOST_DEVICE constexpr int blocks_of_many(int blocks, int step, int many_units, int few_units) {
  if (few_units == 0) return blocks;
  if (many_units == 0) return 0;
  const float many = many_unit_time * static_cast<float>(many_units), few = static_cast<float>(few_units);
  const int steps   = blocks / step;
  const int halves  = static_cast<int>(static_cast<float>(2 * steps) * (many / (many + few)));
  const int nearest = (halves + 1) / 2;
  return step * (nearest < 1 ? 1 : nearest >= steps ? steps - 1 : nearest);
}

/// A number of blocks near `blocks` that have whole batch heads, up to four each, or equal parts of one; `blocks` if
/// none within a sixth of it is a multiple of `step`. More blocks are tried first: entries of few rows have late
/// shares, so that they end together whatever blocks they have, but those of many rows do not. most: the most blocks.
/// all: batch heads of about one size.
PAGODA_HOST_DEVICE constexpr int whole_heads_each(int blocks, int most, int step, int all) {
  constexpr int most_each = 4;
  if (blocks < 1 || all < 1 || all > most_each * blocks) return blocks;
  const auto serves = [&](int n) { return n % step == 0 && n <= most && 6 * n <= 7 * blocks && 6 * n >= 5 * blocks; };
  if (all <= blocks) {
    const int parts = blocks / all;
    return serves(all * (parts + 1)) ? all * (parts + 1) : serves(all * parts) ? all * parts : blocks;
  }
  const int each = all / blocks;
  for (int i = each; i <= each + 1; ++i)
    if (all % i == 0 && serves(all / i)) return all / i;
  return blocks;
}

/// Whether lists of this shape run in this kernel. A list has entries of few rows only where these have a role: all
/// query rows of such an entry see the same tokens.
constexpr bool has_mixed_kernel(const Problem& p) {
  return is_list(p) && warp::has_list_elements(p) && !is_quantized(p.type) && group_size_of(p) <= warp::max_list_rows &&
         group_size_of(p) * p.max_q_tokens > warp::max_list_rows && group_size_of(p) * p.max_q_tokens <= tile_rows;
}
/// The most query tokens of an entry of few rows.
constexpr int mixed_few_queries(const Problem& p) {
  return p.causal || p.list.masks ? 1 : warp::max_list_rows / group_size_of(p);
}

}  // namespace pagoda::tuned::wgmma::grouped
