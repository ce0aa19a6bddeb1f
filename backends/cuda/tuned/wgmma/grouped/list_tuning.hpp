// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/common/list_work.hpp"
#include "backends/cuda/tuned/wgmma/grouped/tuning.hpp"

/// The kernels for lists of entries: prices of work and block shapes, as data and pure functions.
namespace pagoda::tuned::wgmma::grouped {

/// The work of a batch head. A unit is the reading of eight tokens. Starting and ending a batch head costs half a tile,
/// and 8 query rows cost another unit to load and to store.
using HeadWork                       = ListHeadWork<tile_tokens, copy_tokens, tile_tokens / copy_tokens / 2, 8, 2>;
inline constexpr int min_block_units = 2 * HeadWork::tile_units;  ///< shorter lists occupy fewer blocks

// --- Block shapes. Besides the warpgroups that multiply, one warp copies tiles and one warp loads queries.

PAGODA_HOST_DEVICE constexpr int list_threads(int warpgroups) { return compute_threads(warpgroups) + 2 * 32; }

/// Slots of the ring. Keys and values of a tile take a slot each.
PAGODA_HOST_DEVICE constexpr int list_slots(int head_dim, int warpgroups) { return warpgroups * 5 * 128 / head_dim; }

/// Queries lie in a ring of units of 16 rows, which has room for two times the most rows. An entry takes as many units
/// side by side as it needs. So several entries of few rows are loaded ahead.
inline constexpr int unit_rows = 16;
PAGODA_HOST_DEVICE constexpr int query_units(int warpgroups) { return 2 * warpgroups * tile_rows / unit_rows; }
PAGODA_HOST_DEVICE constexpr int unit_bytes(int head_dim) { return unit_rows / 8 * bytes_of_8_tokens(head_dim); }

/// Offsets in a block's shared memory. The ring of queries is at 0; products may read beyond its last unit, in tiles.
struct ListLayout {
  int ring;
  int rows;         ///< int [query_units][unit_rows]: row of the outputs of each query token
  int assignments;  ///< Assignment [query_units]
  int pending;      ///< PendingJoin [2]
  int cleared;      ///< int [warpgroups + 1]: values were removed from a tile of the segment
  int barriers;     ///< [slots] full, [slots] empty, [query_units] assigned, [query_units] empty
  int bytes;
};
PAGODA_HOST_DEVICE constexpr ListLayout list_layout(int head_dim, int warpgroups) {
  const int slots = list_slots(head_dim, warpgroups), units = query_units(warpgroups);
  ListLayout s{};
  s.ring        = units * unit_bytes(head_dim);
  s.rows        = s.ring + slots * tile_bytes(head_dim);
  s.assignments = s.rows + units * unit_rows * 4;
  s.pending     = s.assignments + units * 32;
  s.cleared     = s.pending + 2 * 4 * 4;
  s.barriers    = s.cleared + 16;
  s.bytes       = s.barriers + 2 * (slots + units) * 8;
  return s;
}

}  // namespace pagoda::tuned::wgmma::grouped
