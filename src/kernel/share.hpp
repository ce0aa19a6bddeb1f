// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/base/unroll.hpp"
#include "src/kernel/entry.hpp"
#include "src/kernel/kernel_args.hpp"
#include "src/kernel/visible_tokens.hpp"
#include "src/plan/split.hpp"

#include <Kokkos_Core.hpp>

#include <cstdint>

namespace pagoda::detail {

/// Finds the work items of a decode. Items are numbered in the order (entry, kv head, row tile, split) and are computed
/// from the entries when the kernel runs. Calls of find() must have ascending numbers. Every worker computes its items
/// itself, with lanes over entries: no worker waits for another, and no list is stored. This code runs before the first
/// load of every team, so each instruction counts.
///
/// A row that sees no token is one item without tokens, so that its output is written. General: entries may have
/// several query tokens and see only some of their tokens (see DecodeKernel). Deals: splits interleave rounds of the
/// workers; otherwise a split is a contiguous run of tokens. LongSplitFactor: see num_splits_of.
template <class Machine, bool General, bool Deals, int LongSplitFactor = 1>
class Share {
 public:
  using Member = typename Machine::Member;
  /// All rows of an even batch have the same number of splits, so a team can locate its item before any length is
  /// loaded.
  static constexpr bool has_grid = Deals && !General;
  KOKKOS_FUNCTION static bool takes_grid(const SplitBounds& bounds) { return has_grid && !has_fixed_splits(bounds); }

  /// State kept from one item to the next: how rows are split, and where the search continues.
  struct State {
    SplitLimit limit;
    int first_entry, first_item, first_slot;
    bool one_round;  ///< no team has more than one item, and slots are numbered as items
    bool grid;       ///< rows are even, and items are what guess() returns
  };

  /// state: where an earlier search ended. Null: the constructor starts to load entries, and the caller must call
  /// count().
  KOKKOS_FUNCTION Share(const Member& team, const KernelArgs& args, const State* state)
      : args_(args), lane_(Machine::lane(team)), lanes_(Machine::lanes_of(team)), counted_(!state), s_{} {
    if (state) {
      s_ = *state;
    } else if (args.batch > 0) {
      PAGODA_UNROLL_ALL
      for (int j = 0; j < at_first; ++j) first_[j] = view(least(lane_ + j * lanes_, args.batch - 1));
    }
  }

  /// Decides how the batch is split. This needs all entries.
  KOKKOS_FUNCTION void count() {
    const KernelArgs& args = args_;
    RowTotals t{0, 0, 0};
    int all_rows   = 0;
    const auto add = [&](const Work& e) {
      t.chunks += std::int64_t(e.chunks) * e.tiles;
      t.longest = greatest(t.longest, e.chunks);
      if (e.chunks > 0) t.rows += e.tiles;
      all_rows += e.tiles;
    };
    PAGODA_UNROLL_ALL
    for (int j = 0; j < at_first; ++j)
      if (lane_ + j * lanes_ < args.batch) add(work(first_[j]));
    if (lane_ < args.batch) mine_ = work(first_[0]);
    PAGODA_UNROLL(1)
    for (int first = lane_ + at_first * lanes_; first < args.batch; first += at_once * lanes_) {
      EntryView entries[at_once];  // all loads are issued before the first result is used
      PAGODA_UNROLL_ALL
      for (int j = 0; j < at_once; ++j) entries[j] = view(least(first + j * lanes_, args.batch - 1));
      PAGODA_UNROLL_ALL
      for (int j = 0; j < at_once; ++j)
        if (first + j * lanes_ < args.batch) add(work(entries[j]));
    }
    if (args.batch > 1) {
      t        = sum_over_lanes(t);
      all_rows = General ? Machine::lane_sum(all_rows) : args.batch * args.tiles_per_entry.value;
    } else {
      const int rows = Machine::broadcast(t.rows, 0), longest = Machine::broadcast(t.longest, 0);
      t        = {std::int64_t(longest) * rows, rows, longest};
      all_rows = Machine::broadcast(all_rows, 0);
    }
    if (takes_grid(args.split) && even(t)) {
      s_.grid      = true;
      s_.one_round = args.grid_splits.value * all_rows <= args.split.num_teams;
      return;
    }
    s_.limit     = limit_splits(t, args.split);
    s_.one_round = all_rows + s_.limit.cuts <= args.split.num_teams;
  }

  /// Computes the query rows and the split of item i, assuming an even batch. Returns false if there is no such item.
  KOKKOS_FUNCTION static bool guess(const KernelArgs& args, int i, WorkItem& item) {
    const int row  = args.grid_splits.divide(i);
    item.split     = i - row * args.grid_splits.value;
    item.batch     = args.tiles_per_entry.divide(row);
    const int tile = row - item.batch * args.tiles_per_entry.value;
    place(args, tile, args.tiles_per_head, item);
    return item.batch < args.batch;
  }

  KOKKOS_FUNCTION const State& state() const { return s_; }

  /// Finds item i, which must not precede the last item found. Returns false if there are no more items.
  KOKKOS_FUNCTION bool find(int i, WorkItem& item) {
    if (has_grid && s_.grid) return find_in_grid(i, item);
    PAGODA_UNROLL(1)
    for (; s_.first_entry < args_.batch; s_.first_entry += lanes_) {
      Work e = mine_;
      if (!counted_ || s_.first_entry > 0) {
        e           = {0, 0, 0};
        const int b = s_.first_entry + lane_;
        if (b < args_.batch) e = work(view(b));
      }
      int num_splits  = num_splits_of<LongSplitFactor>(e.chunks, s_.limit, args_.split);
      const int items = e.tiles * num_splits;
      int upto        = items;  // including the lane's own
      if (args_.batch > 1) upto = Machine::lane_scan(items);
      const int owner = Machine::first_lane(i < s_.first_item + upto);
      // Only rows with several splits have slots. Where all items fit one round, the number of an item is its slot.
      int slots = 0;
      if (!s_.one_round) slots = Machine::lane_scan(num_splits > 1 ? items : 0);
      if (owner >= 0) {
        const int local = i - s_.first_item - Machine::broadcast(upto - items, owner);
        const int slot  = s_.one_round ? i - local : Machine::broadcast(s_.first_slot + slots - items, owner);
        e.tokens        = Machine::broadcast(e.tokens, owner);
        if constexpr (General) e.tiles = Machine::broadcast(e.tiles, owner);
        num_splits = Machine::broadcast(num_splits, owner);
        make(s_.first_entry + owner, local, slot, e, num_splits, item);
        return true;
      }
      s_.first_item += Machine::broadcast(upto, lanes_ - 1);
      if (!s_.one_round) s_.first_slot += Machine::broadcast(slots, lanes_ - 1);
    }
    return false;
  }

 private:
  /// Adds up the totals of all lanes. Lane sums are ints, so a lane with 2^25 chunks or more sets a bit of `longest`
  /// that no row reaches. Chunks are then counted in units of 2^16, rounded up: rows get fewer cuts, never more.
  KOKKOS_FUNCTION static RowTotals sum_over_lanes(const RowTotals& lane) {
    constexpr int many = 1 << 30;
    const bool marks   = lane.chunks >= std::int64_t(1) << 25;
    RowTotals t{Machine::lane_sum(static_cast<int>(lane.chunks)), Machine::lane_sum(lane.rows),
                Machine::lane_max(lane.longest | (marks ? many : 0))};
    if (t.longest >= many) {
      t.longest = Machine::lane_max(lane.longest);
      t.chunks  = std::int64_t(Machine::lane_sum(static_cast<int>((lane.chunks + 0xffff) >> 16))) << 16;
    }
    return t;
  }

  /// The work of an entry: visible tokens, their chunks, and tiles of query rows.
  struct Work {
    int tokens, chunks, tiles;
  };

  /// Entries that a lane loads before it waits: in the constructor, and in later rounds.
  static constexpr int at_first = General ? 1 : 2, at_once = General ? 1 : 4;

  KOKKOS_FUNCTION EntryView view(int b) const { return args_.template entry<General>(b); }
  KOKKOS_FUNCTION Work work(const EntryView& entry) const {
    if constexpr (!General) return {entry.tokens, chunks(entry.tokens), args_.tiles_per_entry.value};
    const int visible  = VisibleTokens(args_.options, entry).count;
    const int per_head = args_.row_tile.divide(entry.queries * args_.group.value + args_.row_tile.value - 1);
    return {visible, chunks(visible), head_groups(entry) * per_head};
  }
  /// Head groups that an entry reads.
  KOKKOS_FUNCTION int head_groups(const EntryView& entry) const { return entry.kv_head < 0 ? args_.head_groups : 1; }
  KOKKOS_FUNCTION int chunks(int tokens) const {
    const int shift = args_.split.chunk_shift;
    return (tokens >> shift) + ((tokens & ((1 << shift) - 1)) != 0);
  }
  /// Makes item `local` of entry b. slot: the slot of the entry's first item.
  KOKKOS_FUNCTION void make(int b, int local, int slot, const Work& e, int num_splits, WorkItem& item) const {
    const int tile  = num_splits == 1 ? local : quotient(local, num_splits);
    item.batch      = b;
    item.split      = local - tile * num_splits;
    item.num_splits = num_splits;
    item.slot       = slot + tile * num_splits;
    if constexpr (General) {
      const EntryView entry = view(b);
      place(args_, tile, quotient(e.tiles, head_groups(entry)), item);
      if (entry.kv_head >= 0) item.kv_head = entry.kv_head;
    } else {
      place(args_, tile, args_.tiles_per_head, item);
    }
    if constexpr (Deals) {
      deal(e.tokens, num_splits, item);
    } else {
      const int shift        = args_.split.chunk_shift;
      const SplitRange range = split_range(chunks(e.tokens), num_splits, item.split);
      item.begin             = range.first << shift;
      item.end               = item.split + 1 == num_splits ? e.tokens : (range.first + range.count) << shift;
      item.step              = 1 << (shift + args_.split.round_shift);
    }
  }
  /// Finds the kv head and the row tile of an entry's tile number `tile`.
  KOKKOS_FUNCTION static void place(const KernelArgs& args, int tile, int tiles_per_head, WorkItem& item) {
    const int heads = tiles_per_head == 1 ? tile : quotient(tile, tiles_per_head);
    item.kv_head    = heads * args.heads_per_item;
    item.row_tile   = tile - heads * tiles_per_head;
  }
  /// Gives the item every num_splits-th round of the workers.
  KOKKOS_FUNCTION void deal(int tokens, int num_splits, WorkItem& item) const {
    const int shift = args_.split.chunk_shift + args_.split.round_shift;
    item.begin      = item.split << shift;
    item.end        = tokens;
    item.step       = num_splits << shift;
  }
  KOKKOS_FUNCTION bool find_in_grid(int i, WorkItem& item) const {
    if (!guess(args_, i, item)) return false;
    int tokens = 0;
    if (counted_ && item.batch < lanes_) {
      tokens = Machine::broadcast(mine_.tokens, item.batch);
    } else {
      tokens = view(item.batch).tokens;
    }
    const int grid  = args_.grid_splits.value;
    item.slot       = i - item.split;
    item.num_splits = grid_splits_of(chunks(tokens), grid, args_.split);
    deal(tokens, grid, item);
    return item.split < item.num_splits;
  }

  const KernelArgs& args_;
  int lane_, lanes_;
  bool counted_;  ///< entries were loaded by this object, and mine_ is the work of entry `lane`
  Work mine_{0, 0, 0};
  EntryView first_[at_first] = {};  ///< entries `lane`, `lane + lanes`, loaded at once
  State s_;
};

}  // namespace pagoda::detail
