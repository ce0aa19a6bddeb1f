// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/wgmma/shapes.hpp"

/// Keys and values of one head_dim, 64 or 128: shapes, as data.
namespace pagoda::tuned::wgmma::grouped {

/// Warpgroups of a block that multiply, each with rows of its own; a warp more copies.
constexpr int groups(int rows_of_head) { return rows_of_head > rows ? 2 : 1; }
PAGODA_HOST_DEVICE constexpr int workers(int groups) { return groups * 128; }
PAGODA_HOST_DEVICE constexpr int threads(int groups) { return workers(groups) + 32; }
/// On a multiprocessor: while one block is at its softmax, another one multiplies.
PAGODA_HOST_DEVICE constexpr int blocks(int groups) { return 2 / groups; }

/// Of keys, and of values.
PAGODA_HOST_DEVICE constexpr int tile_bytes(int head_dim) { return tokens / 8 * eight_bytes(head_dim); }
/// A stage has a tile of each. 192 KB of them to a multiprocessor: as much as there is room for.
PAGODA_HOST_DEVICE constexpr int stages(int head_dim, int groups) { return groups * 3 * 128 / head_dim; }

/// Offsets in a block's shared memory.
struct Shared {
  /// At 0: queries. debts: Debt [2]; cleared: int, whether values were taken out of a tile of the segment; barriers:
  /// [stages] full, [stages] empty.
  int ring, debts, cleared, barriers, bytes;
};
PAGODA_HOST_DEVICE constexpr Shared shared(int head_dim, int groups) {
  Shared s{};
  s.ring     = groups * (rows / 8) * eight_bytes(head_dim);
  s.debts    = s.ring + stages(head_dim, groups) * 2 * tile_bytes(head_dim);
  s.cleared  = s.debts + 2 * 4 * 4;
  s.barriers = s.cleared + 8;
  s.bytes    = s.barriers + 2 * stages(head_dim, groups) * 8;
  return s;
}

constexpr Pace pace(int head_dim, int groups, const Device& d) {
  return {2 * tile_bytes(head_dim), d.speed.grouped_tile_us, blocks(groups)};
}

}  // namespace pagoda::tuned::wgmma::grouped
