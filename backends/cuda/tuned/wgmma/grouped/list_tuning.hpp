// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/common/list_work.hpp"
#include "backends/cuda/tuned/wgmma/grouped/tuning.hpp"

/// The kernels for lists of entries: prices of work and block shapes, as data and pure functions.
namespace pagoda::tuned::wgmma::grouped {

/// The work of a batch head. A unit is the reading of eight tokens. Starting and ending a batch head costs half a tile,
/// and 8 query rows cost another unit to load and to store.
using HeadWork = ListHeadWork<tile_tokens, copy_tokens, tile_tokens / copy_tokens / 2, 8, 2, true>;
/// Shorter lists occupy fewer blocks. Two tiles, also of a chain, whose entries cost a unit more: two in a tile.
inline constexpr int min_block_units = 2 * (HeadWork::tile_units + 2);

/// Blocks that share an owner's work: each takes one of as many neighboring kv heads. The rows of a token lie side by
/// side in memory, and blocks that read the same tokens for other query tokens do so at about the same time. blocks: of
/// a launch.
constexpr int list_heads_at_once(int num_kv_heads, int blocks) {
  int heads = 4;
  while (num_kv_heads % heads != 0 || blocks % heads != 0) heads /= 2;
  return heads;
}

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
/// Registers of threads that multiply converted tiles; the four other warps of a block have the rest.
PAGODA_HOST_DEVICE constexpr int byte_multiplier_registers(int warpgroups) { return warpgroups == 1 ? 168 : 192; }
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

/// Flags of each warpgroup's segment, and of one of both together.
PAGODA_HOST_DEVICE constexpr int cleared_flags(int warpgroups) { return warpgroups == 1 ? 1 : warpgroups + 1; }
/// A chain is read in halves of tiles, so that two short entries share a tile.
inline constexpr int half_tokens = HeadWork::half_tokens;
/// Tiles that can be in the rings at the same time, in whole or in part.
PAGODA_HOST_DEVICE constexpr int chain_tiles(Type type, int head_dim, int warpgroups) {
  return (byte_slots(type, warpgroups) + list_slots(type, head_dim, warpgroups) + 1) / 2;
}

/// Offsets in a block's shared memory. The ring of queries is at 0; products may read beyond its last unit, in tiles.
struct ListLayout {
  int ring;
  int bytes_ring;   ///< of tiles that are converted
  int rows;         ///< int [query_units][unit_rows]: row of the outputs of each query token
  int assignments;  ///< Assignment [query_units]
  int cleared;      ///< int [cleared_flags]: values were removed from a tile of the segment
  int end;          ///< int: number of tiles that are copied to be converted, once it is known
  int chain_tiles;  ///< int2 [chain_tiles]: what multiplying warps have to know of the halves of a chain's tile
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
  s.chain_tiles = s.assignments + units * 32;
  s.cleared     = s.chain_tiles + 8 * chain_tiles(type, head_dim, warpgroups);
  s.end         = s.cleared + 4 * cleared_flags(warpgroups);
  s.barriers    = (s.end + (is_converted(type) ? 4 : 0) + 7) / 8 * 8;
  s.bytes       = s.barriers + 2 * (slots + units + byte_slots) * 8;
  return s;
}

}  // namespace pagoda::tuned::wgmma::grouped
