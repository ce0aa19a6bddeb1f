// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/base/unroll.hpp"
#include "src/kernel/kernel_args.hpp"
#include "src/plan/split.hpp"

#include <Kokkos_Core.hpp>

#include <cstdint>

namespace pagoda::detail {

/// Tokens of a sequence that some query row can see: the first `head` and all from `tail` on. Rows beside a window skip
/// what lies between. Work is cut in this compressed index space: index i is token(i).
struct VisibleTokens {
  int head, tail, count;

  KOKKOS_FUNCTION VisibleTokens(const AttentionOptions& options, int seq_len, int query_len)
      : head(0), tail(0), count(seq_len) {
    if (options.window_left < 0) return;
    // The first token that the first query token sees. 64 bits: window_left may be as large as an int.
    const std::int64_t earliest = std::int64_t(seq_len) - query_len - options.window_left;
    tail                        = static_cast<int>(least(greatest(earliest, std::int64_t(0)), std::int64_t(seq_len)));
    head                        = least(options.num_initial_tokens, tail);
    count                       = head + seq_len - tail;
  }
  KOKKOS_FUNCTION int token(int index) const { return index < head ? index : index - head + tail; }
};

/// The plan as a worker sees it: the items of a batch in order (batch entry, kv head, row tile, split), worked out from
/// the lengths as they are when the kernel runs. Items are asked for in rising order. Every worker does this for
/// itself, lanes over batch entries, so that nobody waits and no list is written. What stands here runs before the
/// first load of every team: few instructions count.
///
/// A row that sees no token is one item without tokens, so that its output is written. General: entries may have
/// several query tokens and see only some of theirs (see DecodeKernel). Deals: splits are dealt out in rounds of the
/// workers; otherwise they are runs of tokens.
template <class Machine, bool General, bool Deals>
class Share {
 public:
  using Member = typename Machine::Member;
  /// Rows of even batches are cut alike, so that a team knows where its item lies before it knows any length.
  static constexpr bool has_grid = Deals && !General;

  /// What is kept from one item to the next: how rows are cut, and how far the search has come.
  struct State {
    SplitLimit limit;
    int first_entry, first_item, first_slot;
    bool one_round;  ///< no team has more than one item, and items' own numbers do as slots
    bool grid;       ///< rows are even, and items are what guess() says
  };

  /// state: where an earlier search has come to, or null: then lengths are asked for, and count() must follow.
  KOKKOS_FUNCTION Share(const Member& team, const KernelArgs& args, const State* state)
      : args_(args), lane_(Machine::lane(team)), lanes_(Machine::lanes_of(team)), counted_(!state), s_{} {
    if (state) {
      s_ = *state;
    } else if (args.batch > 0) {
      PAGODA_UNROLL_ALL
      for (int j = 0; j < at_first; ++j) first_[j] = args.seq_len(least(lane_ + j * lanes_, args.batch - 1));
    }
  }

  /// How the batch is cut, which takes all lengths.
  KOKKOS_FUNCTION void count() {
    const KernelArgs& args = args_;
    RowTotals t{0, 0, 0};
    int all_rows   = 0;
    const auto add = [&](const Entry& e) {
      t.chunks += std::int64_t(e.chunks) * e.tiles;
      t.longest = greatest(t.longest, e.chunks);
      if (e.chunks > 0) t.rows += e.tiles;
      all_rows += e.tiles;
    };
    PAGODA_UNROLL_ALL
    for (int j = 0; j < at_first; ++j)
      if (lane_ + j * lanes_ < args.batch) add(entry(lane_ + j * lanes_, first_[j]));
    if (lane_ < args.batch) mine_ = entry(lane_, first_[0]);
    PAGODA_UNROLL(1)
    for (int first = lane_ + at_first * lanes_; first < args.batch; first += at_once * lanes_) {
      int lengths[at_once];  // all on their way before the first is needed
      PAGODA_UNROLL_ALL
      for (int j = 0; j < at_once; ++j) lengths[j] = args.seq_len(least(first + j * lanes_, args.batch - 1));
      PAGODA_UNROLL_ALL
      for (int j = 0; j < at_once; ++j)
        if (first + j * lanes_ < args.batch) add(entry(first + j * lanes_, lengths[j]));
    }
    if (args.batch > 1) {
      t        = sum_over_lanes(t);
      all_rows = General ? Machine::lane_sum(all_rows) : args.batch * args.tiles_per_entry.value;
    } else {
      const int rows = Machine::broadcast(t.rows, 0), longest = Machine::broadcast(t.longest, 0);
      t        = {std::int64_t(longest) * rows, rows, longest};
      all_rows = Machine::broadcast(all_rows, 0);
    }
    if (has_grid && even(t)) {
      s_.grid      = true;
      s_.one_round = args.grid_splits.value * all_rows <= args.split.num_teams;
      return;
    }
    s_.limit     = limit_splits(t, args.split);
    s_.one_round = all_rows + s_.limit.cuts <= args.split.num_teams;
  }

  /// Which query rows item i of an even batch would be of, and which of their splits; false: there is no such item.
  KOKKOS_FUNCTION static bool guess(const KernelArgs& args, int i, WorkItem& item) {
    const int row  = args.grid_splits.divide(i);
    item.split     = i - row * args.grid_splits.value;
    item.batch     = args.tiles_per_entry.divide(row);
    const int tile = row - item.batch * args.tiles_per_entry.value;
    place(args, tile, args.tiles_per_head, item);
    return item.batch < args.batch;
  }

  KOKKOS_FUNCTION const State& state() const { return s_; }

  /// Item i, not before the last one asked for; false if there are no more.
  KOKKOS_FUNCTION bool find(int i, WorkItem& item) {
    if (has_grid && s_.grid) return find_in_grid(i, item);
    PAGODA_UNROLL(1)
    for (; s_.first_entry < args_.batch; s_.first_entry += lanes_) {
      Entry e = mine_;
      if (!counted_ || s_.first_entry > 0) {
        e           = {0, 0, 0};
        const int b = s_.first_entry + lane_;
        if (b < args_.batch) e = entry(b, args_.seq_len(b));
      }
      int num_splits  = num_splits_of(e.chunks, s_.limit, args_.split);
      const int items = e.tiles * num_splits;
      int upto        = items;  // the lane's own included
      if (args_.batch > 1) upto = Machine::lane_scan(items);
      const int owner = Machine::first_lane(i < s_.first_item + upto);
      // Slots are counted over cut rows alone; where all items fit one round, their own numbers will do.
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
  /// Sums over lanes are of ints, so a lane that has 2^25 chunks or more marks itself in a bit that no longest row
  /// reaches. Chunks are then counted in units of 2^16, rounded up: a row gets a few cuts less, never more.
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

  /// Tokens that are visible, and chunks of them; tiles of query rows.
  struct Entry {
    int tokens, chunks, tiles;
  };

  /// Lengths a lane asks for before it waits: before all else, and later.
  static constexpr int at_first = General ? 1 : 2, at_once = General ? 1 : 4;

  KOKKOS_FUNCTION Entry entry(int b, int seq_len) const {
    if constexpr (!General) return {seq_len, chunks(seq_len), args_.tiles_per_entry.value};
    const int queries = args_.query_len(b), visible = VisibleTokens(args_.options, seq_len, queries).count;
    const int per_head = args_.row_tile.divide(queries * args_.group.value + args_.row_tile.value - 1);
    return {visible, chunks(visible), args_.head_groups * per_head};
  }
  KOKKOS_FUNCTION int chunks(int tokens) const {
    const int shift = args_.split.chunk_shift;
    return (tokens >> shift) + ((tokens & ((1 << shift) - 1)) != 0);
  }
  /// The entry's local-th item; slot: of the entry's first.
  KOKKOS_FUNCTION void make(int b, int local, int slot, const Entry& e, int num_splits, WorkItem& item) const {
    const int tile  = num_splits == 1 ? local : quotient(local, num_splits);
    item.batch      = b;
    item.split      = local - tile * num_splits;
    item.num_splits = num_splits;
    item.slot       = slot + tile * num_splits;
    place(args_, tile, General ? quotient(e.tiles, args_.head_groups) : args_.tiles_per_head, item);
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
  /// Which kv head and row tile the entry's tile-th tile of rows is.
  KOKKOS_FUNCTION static void place(const KernelArgs& args, int tile, int tiles_per_head, WorkItem& item) {
    const int heads = tiles_per_head == 1 ? tile : quotient(tile, tiles_per_head);
    item.kv_head    = heads * args.heads_per_item;
    item.row_tile   = tile - heads * tiles_per_head;
  }
  /// Every step-th round of the workers.
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
      tokens = args_.seq_len(item.batch);
    }
    const int grid  = args_.grid_splits.value;
    item.slot       = i - item.split;
    item.num_splits = grid_splits_of(chunks(tokens), grid, args_.split);
    deal(tokens, grid, item);
    return item.split < item.num_splits;
  }

  const KernelArgs& args_;
  int lane_, lanes_;
  bool counted_;  ///< the lengths were read just now, and the lane has its own of the first entries at hand
  Entry mine_{0, 0, 0};
  int first_[at_first] = {};  ///< lengths of entries `lane`, `lane + lanes`, asked for at once
  State s_;
};

}  // namespace pagoda::detail
