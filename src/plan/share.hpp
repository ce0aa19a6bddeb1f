// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/kernel/kernel_args.hpp"
#include "src/kernel/unroll.hpp"
#include "src/plan/split.hpp"

#include <Kokkos_Core.hpp>

#include <cstdint>

namespace pagoda::detail {

/// Tokens of a sequence that some query row can see: the first `head` and all from `tail` on. Rows beside a window skip
/// what lies between. Work is cut in this compressed index space: index i is token(i).
struct VisibleTokens {
  int head, tail, count;

  KOKKOS_FUNCTION VisibleTokens(const ScoreOptions& score, int seq_len, int query_len)
      : head(0), tail(0), count(seq_len) {
    if (score.window_left < 0) return;
    const int earliest = seq_len - query_len - score.window_left;  // of the first query token
    tail               = Kokkos::clamp(earliest, 0, seq_len);
    head               = Kokkos::min(score.num_initial_tokens, tail);
    count              = head + seq_len - tail;
  }
  KOKKOS_FUNCTION int token(int index) const { return index < head ? index : index - head + tail; }
};

/// The plan as a worker sees it: the items of a batch in order (batch entry, kv head, row tile, piece), worked out from
/// the lengths as they are when the kernel runs. Items are asked for in rising order. Every worker does this for
/// itself, lanes over batch entries, so that nobody waits and no list is written. What stands here runs before the
/// first load of every team: few instructions count.
///
/// A row that sees no token is one item without tokens, so that its output is written. All: entries may have several
/// query tokens and see only some of theirs (see DecodeKernel).
template <class Machine, bool All>
class Share {
 public:
  using Member = typename Machine::Member;

  /// What is kept from one item to the next: how rows are cut, and how far the search has come.
  struct State {
    PieceLimit limit;
    int first_entry, first_item, first_slot;
    bool one_round;  ///< no team has more than one item, and items' own numbers do as slots
  };

  /// state: where an earlier search has come to, or null.
  KOKKOS_FUNCTION Share(const Member& team, const KernelArgs& args, const State* state)
      : args_(args), lane_(Machine::lane(team)), lanes_(Machine::lanes_of(team)), s_{} {
    if (state) {
      s_ = *state;
      return;
    }
    RowTotals t{0, 0, 0};
    int all_rows = 0;
    PAGODA_UNROLL(1)
    for (int b = lane_; b < args.batch; b += lanes_) {
      const Entry e = entry(b);
      all_rows += e.tiles;
      t.chunks += e.chunks * e.tiles;
      t.longest = Kokkos::max(t.longest, e.chunks);
      if (e.chunks > 0) t.rows += e.tiles;
    }
    if (args.batch > 1) {
      t        = {Machine::lane_sum(t.chunks), Machine::lane_sum(t.rows), Machine::lane_max(t.longest)};
      all_rows = Machine::lane_sum(all_rows);
    } else {
      t        = {Machine::tell(t.chunks, 0), Machine::tell(t.rows, 0), Machine::tell(t.longest, 0)};
      all_rows = Machine::tell(all_rows, 0);
    }
    s_.limit     = limit_pieces(t, args.split);
    s_.one_round = all_rows + s_.limit.cuts <= args.split.teams;
  }

  KOKKOS_FUNCTION const State& state() const { return s_; }

  /// Item i, not before the last one asked for; false if there are no more.
  KOKKOS_FUNCTION bool find(int i, WorkItem& item) {
    PAGODA_UNROLL(1)
    for (; s_.first_entry < args_.batch; s_.first_entry += lanes_) {
      Entry e{0, 0, 0};
      if (s_.first_entry + lane_ < args_.batch) e = entry(s_.first_entry + lane_);
      RowCut cut      = cut_row(e.chunks, s_.limit);
      const int items = e.tiles * cut.pieces;
      int upto        = items;  // the lane's own included
      if (args_.batch > 1) upto = Machine::lane_scan(items);
      const int owner = Machine::first_lane(i < s_.first_item + upto);
      // Slots are counted over cut rows alone; where all items fit one round, their own numbers will do.
      int slots = 0;
      if (!s_.one_round) slots = Machine::lane_scan(cut.pieces > 1 ? items : 0);
      if (owner >= 0) {
        int local = i - s_.first_item - (upto - items), slot = s_.first_slot + slots - items;
        local = Machine::tell(local, owner);
        slot  = s_.one_round ? i - local : Machine::tell(slot, owner);
        e     = {Machine::tell(e.tokens, owner), 0, Machine::tell(e.tiles, owner)};
        cut   = {Machine::tell(cut.pieces, owner), Machine::tell(cut.length, owner)};
        make(s_.first_entry + owner, local, slot, e, cut, item);
        return true;
      }
      s_.first_item += Machine::tell(upto, lanes_ - 1);
      if (!s_.one_round) s_.first_slot += Machine::tell(slots, lanes_ - 1);
    }
    return false;
  }

 private:
  /// Tokens that are visible, and chunks of them; tiles of query rows.
  struct Entry {
    int tokens, chunks, tiles;
  };

  KOKKOS_FUNCTION Entry entry(int b) const {
    const int seq_len = args_.seq_len(b);
    if constexpr (!All) return {seq_len, chunks(seq_len), args_.tiles_per_entry};
    const int queries = args_.query_len(b), visible = VisibleTokens(args_.score, seq_len, queries).count;
    const int per_head = args_.row_tile.divide(queries * args_.group.value + args_.row_tile.value - 1);
    return {visible, chunks(visible), args_.head_groups * per_head};
  }
  KOKKOS_FUNCTION int chunks(int tokens) const {
    const int shift = args_.split.chunk_shift;
    return (tokens >> shift) + ((tokens & ((1 << shift) - 1)) != 0);
  }
  /// The entry's local-th item; slot: of the entry's first.
  KOKKOS_FUNCTION void make(int b, int local, int slot, const Entry& e, const RowCut& cut, WorkItem& item) const {
    const int tile     = cut.pieces == 1 ? local : quotient(local, cut.pieces);
    const int per_head = All ? quotient(e.tiles, args_.head_groups) : args_.tiles_per_head;
    item.batch         = b;
    const int heads    = per_head == 1 ? tile : quotient(tile, per_head);
    item.kv_head       = heads * args_.heads_per_item;
    item.row_tile      = tile - heads * per_head;
    item.piece         = local - tile * cut.pieces;
    item.pieces        = cut.pieces;
    item.begin         = (item.piece * cut.length) << args_.split.chunk_shift;
    item.end           = item.piece + 1 == cut.pieces ? e.tokens : item.begin + (cut.length << args_.split.chunk_shift);
    item.slot          = slot + tile * cut.pieces;
  }

  const KernelArgs& args_;
  int lane_, lanes_;
  State s_;
};

}  // namespace pagoda::detail
