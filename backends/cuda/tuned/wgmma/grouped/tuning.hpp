// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/wgmma/tuning.hpp"

/// Keys and values of one head_dim, 64 or 128: block shapes, as data.
namespace pagoda::tuned::wgmma::grouped {

/// Warpgroups of a block that multiply, each with its own query rows. One more warp copies, for pages of any number of
/// tokens four warps. Beside two warpgroups there always are four, because they give registers away.
constexpr int num_warpgroups(int rows_of_head) { return rows_of_head > tile_rows ? 2 : 1; }
PAGODA_HOST_DEVICE constexpr int compute_threads(int warpgroups) { return warpgroups * 128; }
PAGODA_HOST_DEVICE constexpr int copying_threads(int warpgroups, bool small_pages) {
  return warpgroups == 2 || small_pages ? 128 : 32;
}
PAGODA_HOST_DEVICE constexpr int threads(int warpgroups, bool small_pages = false) {
  return compute_threads(warpgroups) + copying_threads(warpgroups, small_pages);
}
/// Blocks on a multiprocessor: while one block computes its softmax, another one multiplies.
PAGODA_HOST_DEVICE constexpr int blocks_per_sm(int warpgroups) { return 2 / warpgroups; }
/// Registers of a thread that multiplies, where four warps copy.
PAGODA_HOST_DEVICE constexpr int multiplier_registers(int warpgroups) { return warpgroups == 1 ? 168 : 208; }
/// Registers of a thread of the four warps that copy: what threads with `multiplier` registers leave of the block's.
/// If they kept more, those threads would wait for their registers for ever (PTX ISA, setmaxnreg).
PAGODA_HOST_DEVICE constexpr int copier_registers(int warpgroups, int multiplier) {
  const int multiplying = compute_threads(warpgroups), all = multiplying + 128;
  const int compiled = 65536 / (all * blocks_per_sm(warpgroups)) / 8 * 8;  // of each thread, as __launch_bounds__ says
  return (all * compiled - multiplying * multiplier) / 128;
}

/// Bytes of a tile of keys, or of values.
PAGODA_HOST_DEVICE constexpr int tile_bytes(int head_dim) { return tile_tokens / 8 * bytes_of_8_tokens(head_dim); }
/// Stages of a block's ring. A stage is a tile of keys and one of values. The stages of a multiprocessor take 192 KB,
/// the most that fits.
PAGODA_HOST_DEVICE constexpr int stages(int head_dim, int warpgroups) { return warpgroups * 3 * 128 / head_dim; }

/// Offsets in a block's shared memory. Queries are at 0.
struct SharedLayout {
  int ring;
  int pending;   ///< PendingJoin [2]
  int cleared;   ///< int: values were removed from a tile of the segment
  int barriers;  ///< [stages] full, [stages] empty
  int bytes;
};
PAGODA_HOST_DEVICE constexpr SharedLayout shared_layout(int head_dim, int warpgroups) {
  SharedLayout s{};
  s.ring     = warpgroups * (tile_rows / 8) * bytes_of_8_tokens(head_dim);
  s.pending  = s.ring + stages(head_dim, warpgroups) * 2 * tile_bytes(head_dim);
  s.cleared  = s.pending + 2 * 4 * 4;
  s.barriers = s.cleared + 8;
  s.bytes    = s.barriers + 2 * stages(head_dim, warpgroups) * 8;
  return s;
}

constexpr Pace pace(int head_dim, int warpgroups, const Device& d) {
  return {2 * tile_bytes(head_dim), d.speed.grouped_tile_us, blocks_per_sm(warpgroups)};
}

}  // namespace pagoda::tuned::wgmma::grouped
