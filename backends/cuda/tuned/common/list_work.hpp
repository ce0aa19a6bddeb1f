// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/common/work_division.hpp"

#include <cstddef>

/// The work of a list of entries, and its shares. A *batch head* is an entry and one of its kv heads. A *share* is a
/// run of batch heads, of which the first and the last may be split (WorkDivision). Each *owner* of a share carries it
/// out alone: a block of the wgmma kernels, a warp of the warp kernels.
namespace pagoda::tuned {

/// The work of a batch head, counted in units: reading UnitTokens tokens of one kv head. Its units are those of its
/// tokens and those of its start and end: SegmentUnits, and one more for each RowsOfUnit query rows, which are loaded
/// and stored. It may be split at tiles, at least MinSplitTiles from its first and its last one, because fewer are not
/// worth a join. An offset (in units, from the batch head's beginning) at which a share ends becomes the nearest
/// allowed split.
template <int TileTokens, int UnitTokens, int SegmentUnits, int RowsOfUnit, int MinSplitTiles, bool Chains = false,
          bool Late = false>
struct ListHeadWork {
  static constexpr bool chains     = Chains;  ///< whether kernels with this work carry out chains
  static constexpr bool late       = Late;    ///< whether they have late shares (LateDivision)
  static constexpr int tile_tokens = TileTokens, tile_units = TileTokens / UnitTokens;
  static constexpr int min_split_tiles = MinSplitTiles, half_tokens = TileTokens / 2;
  int tiles, start;  ///< start: units before the first tile
  int units;         ///< all of them; at least 1
  int tile_16ths;    ///< of a chain: units of a tile, on average, in sixteenths; 0: of an entry

  PAGODA_HOST_DEVICE static constexpr ListHeadWork of(int tokens, int rows) {
    const int start = SegmentUnits + (rows + RowsOfUnit - 1) / RowsOfUnit;
    return {(tokens + TileTokens - 1) / TileTokens, start, start + token_units(tokens), 0};
  }
  /// Units of tokens, without any price.
  PAGODA_HOST_DEVICE static constexpr int token_units(int tokens) { return (tokens + UnitTokens - 1) / UnitTokens; }
  PAGODA_HOST_DEVICE static constexpr int chain_halves(int tokens) { return (tokens + half_tokens - 1) / half_tokens; }
  /// Units of a further entry of a chain.
  PAGODA_HOST_DEVICE static constexpr int chain_units(int tokens) { return tokens > 0 ? token_units(tokens) + 1 : 0; }
  /// A chain, which is read in halves of tiles. rows: of all its entries; `halves` and `units`: of the entries
  /// together, by chain_halves() and chain_units().
  PAGODA_HOST_DEVICE static constexpr ListHeadWork of_chain(int halves, int units, int rows) {
    const int start = SegmentUnits + (rows + RowsOfUnit - 1) / RowsOfUnit, tiles = (halves + 1) / 2;
    return {tiles, start, start + units, tiles > 0 ? 16 * units / tiles : 16};
  }
  /// Smaller offsets become the batch head's beginning.
  PAGODA_HOST_DEVICE constexpr int first_split() const {
    return tiles < 2 * MinSplitTiles ? (units + 1) / 2 : start + units_of(MinSplitTiles);
  }
  /// This and larger offsets become its end.
  PAGODA_HOST_DEVICE constexpr int end_splits() const {
    return tiles < 2 * MinSplitTiles ? first_split() : start + units_of(tiles - MinSplitTiles + 1);
  }
  /// The tile at which `offset` splits the batch head.
  PAGODA_HOST_DEVICE constexpr int tile_at(int offset) const {
    if (offset < first_split()) return 0;
    if (offset >= end_splits()) return tiles;
    return tile_16ths == 0 ? (offset - start) / tile_units : 16 * (offset - start) / tile_16ths;
  }
  /// Units of the first tiles, rounded up.
  PAGODA_HOST_DEVICE constexpr int units_of(int count) const {
    return tile_16ths == 0 ? count * tile_units : (count * tile_16ths + 15) / 16;
  }
};

/// A division of which the last part of the work is in late shares, behind those of the owners. Multiprocessors read
/// at rates that differ by up to a quarter (bench/NOTES.md, "Late shares"), so that equal shares end at different
/// times. Workers that have done their own shares take late ones, one after the other, until there are no more. A late
/// share has the batch heads that begin within it, whole, and a number behind those of the owners.
struct LateDivision {
  static constexpr int most_each = 4;  ///< late shares for each owner
  WorkDivision own;                    ///< of the work before the late shares
  int late_units = 0, late_count = 0;  ///< units of a late share, and how many there are

  LateDivision() = default;
  /// Without late shares.
  PAGODA_HOST_DEVICE constexpr explicit LateDivision(const WorkDivision& division) : own(division) {}
  /// With late shares if an owner has three or more batch heads, and sums of units fit an int. Owners get four fifths
  /// of the work, in multiples of `largest` units: those of the largest batch head.
  PAGODA_HOST_DEVICE static constexpr LateDivision of(int total, int largest, int max_owners, int min_units) {
    LateDivision d(WorkDivision::of(total, max_owners, min_units));
    const int owners = d.own.owners, each = total / owners;
    if (each / 3 < largest || each / 3 < min_units || total > 1 << 30) return d;
    const int before = owners * ((each - each / 5) / largest * largest), late = total - before;
    const int least = (late + most_each * owners - 1) / (most_each * owners);
    d.own           = WorkDivision::of(before, owners, min_units);
    d.late_units    = (least + largest - 1) / largest * largest;
    d.late_count    = (late + d.late_units - 1) / d.late_units;
    return d;
  }
  /// Of an owner's share, or a late one.
  PAGODA_HOST_DEVICE constexpr int begin_of(int share) const {
    return own.begin(share) + (share > own.owners ? (share - own.owners) * late_units : 0);
  }
  PAGODA_HOST_DEVICE constexpr int end_of(int share) const {
    return late_count > 0 && share == own.owners - 1 ? no_end : begin_of(share + 1);
  }
  PAGODA_HOST_DEVICE constexpr bool is_late(int share) const { return share >= own.owners; }
  PAGODA_HOST_DEVICE constexpr int owner_of(int unit) const { return own.owner_of(unit); }

 private:
  /// The last owner does all of the batch head that reaches into the late shares. It begins in the owner's own share,
  /// which has two batch heads or more.
  static constexpr int no_end = 0x7fffffff;
};

/// Bytes of the board of late shares (LateBoard), for this many workers: a count, and the beginning of each share.
constexpr std::size_t late_board_bytes(int workers) { return 8 * (1 + std::size_t(LateDivision::most_each) * workers); }

/// What an owner does of a batch head.
struct HeadShare {
  bool any, last;            ///< last: the owner has no later batch heads
  int first_tile, end_tile;  ///< both 0 if the batch head has no tiles
  bool has_first_tile, whole;
  int first_owner, last_owner;  ///< owners that have a split; only if not whole

  /// position: units before the batch head. owner: one with a share. division: WorkDivision or LateDivision.
  template <class Work, class Division>
  PAGODA_HOST_DEVICE static constexpr HeadShare of(const Work& work, int position, const Division& division,
                                                   int owner) {
    const int begin = division.begin_of(owner) - position, end = division.end_of(owner) - position;
    const int first_split = work.first_split(), end_splits = work.end_splits();
    HeadShare s{};
    if constexpr (Work::late) {
      if (division.is_late(owner)) {
        s.last = end <= 0, s.any = begin <= 0 && !s.last;
        s.end_tile = work.tiles, s.has_first_tile = s.whole = true;
        return s;
      }
    }
    s.last           = end < first_split || (Work::late && division.begin_of(owner + 1) <= position);
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

/// Whether entries are of about one size: the largest has at most 5/4 of the mean. total, largest: units.
PAGODA_HOST_DEVICE constexpr bool are_of_one_size(int entries, int total, int largest) {
  return 4 * static_cast<float>(largest) * static_cast<float>(entries) <= 5 * static_cast<float>(total);
}

/// The number of owners, at most `most`, for `entries` entries of `heads` batch heads each. If the entries are of about
/// one size, owners get whole batch heads, up to four, or equal parts of one. If they are not, or if that left more
/// than a sixteenth of the owners without work, the number is `most`. Otherwise most shares would reach into one more
/// batch head, and loading its queries and joining its partial results costs more than the further owners save. total,
/// largest: units of all entries and of the largest entry.
PAGODA_HOST_DEVICE constexpr int even_owners(int entries, int heads, int total, int largest, int most) {
  constexpr int most_each = 4;
  const int all           = entries * heads;
  if (all == 0 || all > most_each * most || !are_of_one_size(entries, total, largest)) return most;
  int each = 1;  // batch heads of an owner, if there are enough
  while (all > each * most) ++each;
  const int owners = all < most ? all * (most / all) : all / each;
  return (all < most || owners * each == all) && 16 * owners >= 15 * most ? owners : most;
}

}  // namespace pagoda::tuned
