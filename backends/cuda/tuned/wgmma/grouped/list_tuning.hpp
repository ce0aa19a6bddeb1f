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

/// Whether keys and values are converted to fp16 before they are multiplied.
PAGODA_HOST_DEVICE constexpr bool is_converted(Type type) {
  return type == Type::fp8_e4m3 || type == Type::fp8_e5m2 || type == Type::int8;
}

// --- Block shapes. Besides the warpgroups that multiply, one warp copies tiles and one warp loads queries. Two more
// convert tiles, so that these four are a warpgroup.

inline constexpr int converting_warps = 2;
PAGODA_HOST_DEVICE constexpr int list_threads(Type type, int warpgroups) {
  return compute_threads(warpgroups) + (is_converted(type) ? 2 + converting_warps : 2) * 32;
}
/// Slots of the ring from which tiles are multiplied. Keys and values of a tile take a slot each.
PAGODA_HOST_DEVICE constexpr int list_slots(Type type, int head_dim, int warpgroups) {
  return warpgroups * (is_converted(type) ? 3 : 5) * 128 / head_dim;
}
/// Slots of the ring to which tiles of 8 bits are copied, before they are converted.
PAGODA_HOST_DEVICE constexpr int byte_slots(Type type, int warpgroups) {
  return is_converted(type) ? warpgroups * 3 : 0;
}
PAGODA_HOST_DEVICE constexpr int byte_tile_bytes(int head_dim) { return tile_bytes(head_dim) / 2; }

/// Queries lie in a ring of units of 16 rows, which has room for two times the most rows. An entry takes as many units
/// side by side as it needs. So several entries of few rows are loaded ahead.
inline constexpr int unit_rows = 16;
PAGODA_HOST_DEVICE constexpr int query_units(int warpgroups) { return 2 * warpgroups * tile_rows / unit_rows; }
PAGODA_HOST_DEVICE constexpr int unit_bytes(int head_dim) { return unit_rows / 8 * bytes_of_8_tokens(head_dim); }

/// Offsets in a block's shared memory. The ring of queries is at 0; products may read beyond its last unit, in tiles.
struct ListLayout {
  int ring;
  int bytes_ring;   ///< of tiles that are converted
  int rows;         ///< int [query_units][unit_rows]: row of the outputs of each query token
  int assignments;  ///< Assignment [query_units]
  int pending;      ///< PendingJoin [2]
  int cleared;      ///< int [warpgroups + 1]: values were removed from a tile of the segment
  int end;          ///< int: number of tiles that are copied to be converted, once it is known
  int barriers;  ///< [slots] full, [slots] empty, [query_units] assigned, [query_units] empty, [byte_slots] full, empty
  int bytes;
};
PAGODA_HOST_DEVICE constexpr ListLayout list_layout(Type type, int head_dim, int warpgroups) {
  const int slots = list_slots(type, head_dim, warpgroups), units = query_units(warpgroups);
  const int byte_slots = grouped::byte_slots(type, warpgroups);
  ListLayout s{};
  s.ring        = units * unit_bytes(head_dim);
  s.bytes_ring  = s.ring + slots * tile_bytes(head_dim);
  s.rows        = s.bytes_ring + byte_slots * byte_tile_bytes(head_dim);
  s.assignments = s.rows + units * unit_rows * 4;
  s.pending     = s.assignments + units * 32;
  s.cleared     = s.pending + 2 * 4 * 4;
  s.end         = s.cleared + 12;
  s.barriers    = s.cleared + 16;
  s.bytes       = s.barriers + 2 * (slots + units + byte_slots) * 8;
  return s;
}

}  // namespace pagoda::tuned::wgmma::grouped
