// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/common/work_division.hpp"

/// The work of a list of entries, and its shares. A *batch head* is an entry and one of its kv heads. A *share* is a
/// run of batch heads, of which the first and the last may be split (WorkDivision). Each *owner* of a share carries it
/// out alone: a block of the wgmma kernels, a warp of the warp kernels.
namespace pagoda::tuned {

/// The work of a batch head, counted in units: reading UnitTokens tokens of one kv head. Its units are those of its
/// tokens and those of its start and end: SegmentUnits, and one more for each RowsOfUnit query rows, which are loaded
/// and stored. It may be split at tiles, at least MinSplitTiles from its first and its last one, because fewer are not
/// worth a join. An offset (in units, from the batch head's beginning) at which a share ends becomes the nearest
/// allowed split.
template <int TileTokens, int UnitTokens, int SegmentUnits, int RowsOfUnit, int MinSplitTiles>
struct ListHeadWork {
  static constexpr int tile_tokens = TileTokens, tile_units = TileTokens / UnitTokens;
  static constexpr int min_split_tiles = MinSplitTiles;
  int tiles, start;  ///< start: units before the first tile
  int units;         ///< all of them; at least 1

  PAGODA_HOST_DEVICE static constexpr ListHeadWork of(int tokens, int rows) {
    const int start = SegmentUnits + (rows + RowsOfUnit - 1) / RowsOfUnit;
    return {(tokens + TileTokens - 1) / TileTokens, start, start + (tokens + UnitTokens - 1) / UnitTokens};
  }
  /// Smaller offsets become the batch head's beginning.
  PAGODA_HOST_DEVICE constexpr int first_split() const {
    return tiles < 2 * MinSplitTiles ? (units + 1) / 2 : start + MinSplitTiles * tile_units;
  }
  /// This and larger offsets become its end.
  PAGODA_HOST_DEVICE constexpr int end_splits() const {
    return tiles < 2 * MinSplitTiles ? first_split() : start + (tiles - MinSplitTiles + 1) * tile_units;
  }
  /// The tile at which `offset` splits the batch head.
  PAGODA_HOST_DEVICE constexpr int tile_at(int offset) const {
    return offset < first_split() ? 0 : offset >= end_splits() ? tiles : (offset - start) / tile_units;
  }
};

/// What an owner does of a batch head.
struct HeadShare {
  bool any, last;            ///< last: the owner has no later batch heads
  int first_tile, end_tile;  ///< both 0 if the batch head has no tiles
  bool has_first_tile, whole;
  int first_owner, last_owner;  ///< owners that have a split; only if not whole

  /// position: units before the batch head.
  template <class Work>
  PAGODA_HOST_DEVICE static constexpr HeadShare of(const Work& work, int position, const WorkDivision& division,
                                                   int owner) {
    const int begin = division.begin(owner) - position, end = division.begin(owner + 1) - position;
    const int first_split = work.first_split(), end_splits = work.end_splits();
    HeadShare s{};
    s.last           = end < first_split;
    s.any            = !s.last && begin < end_splits;
    s.has_first_tile = begin < first_split;
    s.whole          = s.has_first_tile && end >= end_splits;
    s.first_tile = work.tile_at(begin), s.end_tile = work.tile_at(end);
    if (s.any && !s.whole) {
      s.first_owner = division.owner_of(position + first_split - 1);
      s.last_owner  = division.owner_of(position + end_splits - 1);
    }
    return s;
  }
};

}  // namespace pagoda::tuned
