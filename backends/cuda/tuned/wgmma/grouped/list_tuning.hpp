// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/wgmma/grouped/tuning.hpp"

/// The kernels for lists of entries: block shapes and the division of a list among blocks, as data and pure functions.
namespace pagoda::tuned::wgmma::grouped {

// --- Work. It is counted in units: reading eight tokens of one kv head. A *batch head* is an entry and one of its kv
// heads. Its units are those of its tokens and those of its start and end: loading queries, storing outputs.

inline constexpr int tile_units      = tile_tokens / copy_tokens;
inline constexpr int segment_units   = tile_units / 2;  ///< of the start and end of a batch head: half a tile
inline constexpr int rows_of_unit    = 8;               ///< query rows that cost another unit to load and to store
inline constexpr int min_split_tiles = 2;               ///< fewer tiles are not worth a join
inline constexpr int min_block_units = 2 * tile_units;  ///< units of a block; shorter lists occupy fewer blocks

/// The work of a batch head. It may be split at tiles, at least min_split_tiles from its first and its last one. An
/// offset (in units, from the batch head's beginning) at which a block's share ends becomes the nearest allowed split.
struct HeadWork {
  int tiles, start;  ///< start: units before the first tile
  int units;         ///< all of them; at least 1

  PAGODA_HOST_DEVICE static constexpr HeadWork of(int tokens, int rows) {
    const int start = segment_units + (rows + rows_of_unit - 1) / rows_of_unit;
    return {(tokens + tile_tokens - 1) / tile_tokens, start, start + (tokens + copy_tokens - 1) / copy_tokens};
  }
  /// Smaller offsets become the batch head's beginning.
  PAGODA_HOST_DEVICE constexpr int first_split() const {
    return tiles < 2 * min_split_tiles ? (units + 1) / 2 : start + min_split_tiles * tile_units;
  }
  /// This and larger offsets become its end.
  PAGODA_HOST_DEVICE constexpr int end_splits() const {
    return tiles < 2 * min_split_tiles ? first_split() : start + (tiles - min_split_tiles + 1) * tile_units;
  }
  /// The tile at which `offset` splits the batch head.
  PAGODA_HOST_DEVICE constexpr int tile_at(int offset) const {
    return offset < first_split() ? 0 : offset >= end_splits() ? tiles : (offset - start) / tile_units;
  }
};

/// Divides `total` units, fewer than 2^31, evenly among blocks. A block has at least min_block_units, so that two
/// blocks never split a batch head at the same tile. Blocks from `blocks` on have none.
struct ListDivision {
  int blocks, units_per_block;
  int longer_blocks;  ///< the first blocks, which have one unit more

  PAGODA_HOST_DEVICE static constexpr ListDivision of(int total, int max_blocks) {
    const int fit    = total / min_block_units;
    const int blocks = fit < 1 ? 1 : fit < max_blocks ? fit : max_blocks;
    return {blocks, total / blocks, total % blocks};
  }
  PAGODA_HOST_DEVICE constexpr int begin(int block) const {
    const int b = block < blocks ? block : blocks;
    return units_per_block * b + (b < longer_blocks ? b : longer_blocks);
  }
  /// The block that has the unit, which must be less than `total`.
  PAGODA_HOST_DEVICE constexpr int block_of(int unit) const {
    const int in_longer = (units_per_block + 1) * longer_blocks;
    return unit < in_longer ? unit / (units_per_block + 1) : longer_blocks + (unit - in_longer) / units_per_block;
  }
};

/// What a block does of a batch head.
struct HeadShare {
  bool any, last;            ///< last: the block has no later batch heads
  int first_tile, end_tile;  ///< both 0 if the batch head has no tiles
  bool has_first_tile, whole;
  int first_block, last_block;  ///< blocks that have a split; only if not whole

  /// position: units before the batch head.
  PAGODA_HOST_DEVICE static constexpr HeadShare of(const HeadWork& work, int position, const ListDivision& division,
                                                   int block) {
    const int begin = division.begin(block) - position, end = division.begin(block + 1) - position;
    const int first_split = work.first_split(), end_splits = work.end_splits();
    HeadShare s{};
    s.last           = end < first_split;
    s.any            = !s.last && begin < end_splits;
    s.has_first_tile = begin < first_split;
    s.whole          = s.has_first_tile && end >= end_splits;
    s.first_tile = work.tile_at(begin), s.end_tile = work.tile_at(end);
    if (s.any && !s.whole) {
      s.first_block = division.block_of(position + first_split - 1);
      s.last_block  = division.block_of(position + end_splits - 1);
    }
    return s;
  }
};

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
