// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/base/unroll.hpp"
#include "src/kernel/entry.hpp"
#include "src/kernel/fragment.hpp"
#include "src/kernel/join.hpp"
#include "src/kernel/kernel_args.hpp"
#include "src/kernel/machine.hpp"
#include "src/kernel/rows.hpp"
#include "src/kernel/score.hpp"
#include "src/kernel/share.hpp"

#include <Kokkos_Core.hpp>

#include <type_traits>

namespace pagoda::detail {

/// The generic decode kernel: one launch for a decode. Every team computes its own work items from the entries. Its
/// workers take an item's tiles of tokens in turn and synchronise at the end of the item. The last team to arrive joins
/// the splits of a row, so no team waits for one that may not be running.
///
/// FragmentType: how rows are read and multiplied (machine.hpp). General: the instance for all problems. The other
/// instance is for one query token in each entry, no score options, and queries of a type that the fragment takes
/// without conversion.
template <class ExecutionSpace, class FragmentType, bool General>
struct DecodeKernel {
  static_assert(pagoda::detail::Fragment<FragmentType>);
  using Machine  = MachineOf<ExecutionSpace>;
  using Fragment = typename FragmentType::template Instance<General>;
  using Member   = typename Machine::Member;
  using Acc      = typename Fragment::Acc;
  KernelArgsFor<Fragment> args;

  /// All workers multiply each tile of tokens together, and a team has one state.
  static constexpr bool shared_tiles = Fragment::shared_tiles;
  /// Splits interleave rounds of the workers.
  static constexpr bool deals_tiles = Machine::deals_tiles && !shared_tiles;
  /// The fragment can multiply a tile of tokens for several kv heads.
  static constexpr bool many_heads = Fragment::many_heads;
  /// Partial states that are joined at once, and quads of each that a lane joins.
  static constexpr int join_block = [] {
    if constexpr (Fragment::join_block > 0) return Fragment::join_block;
    return Machine::join_block;
  }();
  static constexpr int join_quads = [] {
    if constexpr (shared_tiles) return Fragment::join_quads;
    return 1;
  }();
  using Items = Share<Machine, General, deals_tiles, Fragment::long_split_factor>;
  /// The fragment requires values that are a prefix of the keys.
  static constexpr bool values_in_keys = Fragment::values_in_keys;

  static std::size_t scratch_bytes(int head_dim, int head_dim_v, int workers, int heads) {
    return Fragment::scratch_bytes(head_dim, head_dim_v, workers, heads) + sizeof(TeamNotes) +
           Fragment::scratch_alignment;
  }

  KOKKOS_FUNCTION void operator()(const Member& team) const {
    // Allocated once for all items, because each call takes more scratch.
    const int bytes = static_cast<int>(
        Fragment::scratch_bytes(args.head_dim, args.head_dim_v, team.team_size(), args.heads_per_item));
    char* const memory = static_cast<char*>(
        team.team_scratch(int(Machine::scratch_level))
            .get_shmem_aligned(bytes + static_cast<int>(sizeof(TeamNotes)), int(Fragment::scratch_alignment)));
    TeamNotes* const notes = reinterpret_cast<TeamNotes*>(memory + bytes);
    int i                  = team.league_rank();
    PAGODA_UNROLL(1)
    for (bool again = false;; again = true) {
      {
        // Work that does not depend on the lengths overlaps with their loading.
        Items share(team, args, again ? &notes->plan : nullptr);
        Fragment fragment(team, args, memory);
        WorkItem item;
        SpeculativeStart started;
        if constexpr (starts_speculatively)
          if (!again && share.takes_grid(args.split) && share.guess(args, i, item))
            started = start_speculatively(team, item, fragment);
        if (!again) share.count();
        if (!share.find(i, item)) return leave(team, share.state().one_round);
        if (!share.state().grid) started = {};
        if (again) team.team_barrier();  // all have read the notes
        if (leads(team)) notes->item = item, notes->plan = share.state();
        int next = 0;  // requested here and used after the item
        if (!share.state().one_round && leads(team)) next = Kokkos::atomic_fetch_add(&args.team_counters->next, 1);
        carry_out(team, fragment, item, notes, started);
        if (notes->plan.one_round) return;
        team.team_barrier();  // all have finished the item: notes and scratch may change
        if (leads(team)) notes->next = team.league_size() + next;
      }
      team.team_barrier();  // the notes are written, before all read them
      i = notes->next;
    }
  }

 private:
  /// What a team keeps in scratch while its registers hold keys and values.
  struct TeamNotes {
    typename Items::State plan;
    WorkItem item;
    int next;  ///< number of the team's next item
    int last;  ///< whether this team arrived last
  };

  KOKKOS_FUNCTION void leave(const Member& team, bool one_round) const {
    if (one_round) return;
    if (leads(team) && Machine::arrive(&args.team_counters->left) == team.league_size() - 1)
      *args.team_counters = {0, 0};
  }

  /// Whether this is the one lane that acts for the team. (Kokkos::single would also make the lanes of the warp
  /// reconverge, which is not needed before a barrier.)
  KOKKOS_FUNCTION static bool leads(const Member& team) { return team.team_rank() == 0 && Machine::lane(team) == 0; }

  /// The fragment can start before the lengths are known. If the batch is not even, this work is discarded.
  static constexpr bool starts_speculatively = Items::has_grid && Fragment::starts_speculatively;

  struct SpeculativeStart {
    bool queries = false;  ///< the queries are loaded
    bool pages   = false;  ///< the worker's pages are known
    int page     = 0;      ///< page of the lane-th tile of the worker
  };
  KOKKOS_FUNCTION SpeculativeStart start_speculatively(const Member& team, const WorkItem& item,
                                                       Fragment& fragment) const {
    SpeculativeStart f;
    if (args.paged && !args.page_indptr) {  // makes its own view, so that only these caches load the sequence's id
      const int tile =
          (Machine::lane(team) * args.grid_splits.value + item.split) * team.team_size() + team.team_rank();
      const EntryView entry = args.template entry<General>(item.batch);
      const int index       = args.page_size.divide(entry.first + tile * int(Fragment::tile_tokens));
      f.pages               = true;
      f.page = args.pages_of(entry.sequence)[std::int64_t(least(index, args.table_pages - 1)) * args.table_page_stride];
    }
    const EntryView entry = args.template entry<General>(item.batch);
    const TileRows<General> rows(args, entry, item);
    fragment.load_queries(rows, ScoreChange<Fragment, General>(args, entry, rows, fragment).query_scale);
    f.queries = true;
    return f;
  }

  KOKKOS_FUNCTION int heads() const { return many_heads ? args.heads_per_item : 1; }

  KOKKOS_FORCEINLINE_FUNCTION void carry_out(const Member& team, Fragment& fragment, const WorkItem& item_now,
                                             TeamNotes* notes, const SpeculativeStart& started) const {
    const WorkItem& item = notes->item;
    attend(team, fragment, item_now, started, item);
    if (item.num_splits == 1) return;

    // The splits of a group are joined, then the groups of a row. The team with the last state of a row writes the row.
    const int group = merge_group(item.num_splits), groups = ceil_div(item.num_splits, group);
    const int first = quotient(item.split, group) * group;
    int count       = least(group, item.num_splits - first);
    bool last       = groups == 1;
    if (!last_to_arrive(team, args.arrived + item.slot + first, count, notes)) return;
    StateArray<Acc> from = partials(item.slot + first, 0, 1), to = partials(item.slot + first, 1, 1);
    PAGODA_UNROLL(1)
    for (;;) {
      if constexpr (Fragment::joins_rows) {
        join_rows(fragment, item, from, count, last, to);
      } else {
        join_splits(team, item, from, count, last, to);
      }
      if constexpr (Fragment::discards_states)
        if (has_fixed_splits(args.split)) discard(team, from, last ? 0 : 1, count);  // the first has been overwritten
      if (last) return;
      if (!last_to_arrive(team, args.arrived + args.slots + item.slot, groups, notes)) return;
      from  = partials(item.slot, 1, group);
      count = groups;
      last  = true;
    }
  }

  /// Discards the values of partial states first .. count of an item, which the team has joined. Otherwise the cache
  /// would write them to memory, which are megabytes with few KV heads (bench/NOTES.md, "What exactness costs").
  KOKKOS_FUNCTION void discard(const Member& team, const StateArray<Acc>& all, int first, int count) const {
    team.team_barrier();  // all have read them
    const int bytes = args.row_tile.value * heads() * args.value_stride * static_cast<int>(sizeof(Acc));
    for (int j = first; j < count; ++j)
      Machine::discard(team, all.values + static_cast<std::int64_t>(j) * all.value_step, bytes);
  }

  /// Joins `count` states of up to max_rows of the item's rows, from first_row on. last: these are all states of the
  /// rows, and the results are stored as outputs; otherwise they go to `all_to`.
  template <int Block, int Quads>
  KOKKOS_FORCEINLINE_FUNCTION void join(const Member& team, const WorkItem& item, const StateArray<Acc>& all, int count,
                                        bool last, const StateArray<Acc>& all_to, int first_row = 0,
                                        int max_rows = Fragment::rows) const {
    const EntryView entry = args.template entry<General>(item.batch);
    for (int h = 0; h < heads(); ++h) {
      const TileRows<General> rows(args, entry, item, h);
      const StateArray<Acc> to = all_to.head(h);
      const auto emit          = [&](int row, int d, int step, const RowState<Acc>& s, const Acc(&x)[Quads][4]) {
        const int r = first_row + row;
        if (last) return store_row(rows, r, d, step, s, x);
        PAGODA_UNROLL_ALL
        for (int q = 0; q < Quads; ++q)  // only this lane has read what is overwritten here
          to.value(0, r, d + step * q) = {{x[q][0], x[q][1], x[q][2], x[q][3]}};
        if (d == 0) to.state(0, r) = s;
      };
      const int count_rows = least(rows.count - first_row, max_rows);
      if constexpr (shared_tiles) {
        join_states<Machine, Block, Quads>(team, all.head(h), count, count_rows, typename Fragment::RowQuads{}, emit);
      } else {
        join_states<Machine, Block, Quads>(team, all.head(h), count, count_rows, args.value_quads, emit);
      }
    }
  }

  /// The same as join, on a host whose fragment joins whole rows.
  void join_rows(Fragment& fragment, const WorkItem& item, const StateArray<Acc>& all, int count, bool last,
                 const StateArray<Acc>& all_to) const {
    const EntryView entry = args.template entry<General>(item.batch);
    for (int h = 0; h < heads(); ++h) {
      const TileRows<General> rows(args, entry, item, h);
      const StateArray<Acc> from = all.head(h), to = all_to.head(h);
      const int count_rows = least(rows.count, int(Fragment::rows));
      for (int r = 0; r < count_rows; ++r) {
        RowState<Acc> s = join_row_states<Machine>(from, count, r);
        if (last) {
          fragment.store_row(from, count, r, weight_of_row(rows, r, s), rows.output_row(r));
          if (rows.wants_lse()) rows.store_lse(r, lse_of(s));
        } else {
          fragment.store_row(from, count, r, Acc(1), {to.values + r * to.value_stride, dtype_v<Acc>, 0, 1});
          to.state(0, r) = s;
        }
      }
    }
  }

  /// Joins the states of several teams, with as many loads in flight as registers allow.
  KOKKOS_FORCEINLINE_FUNCTION void join_splits(const Member& team, const WorkItem& item, const StateArray<Acc>& from,
                                               int count, bool last, const StateArray<Acc>& to) const {
    if constexpr (!shared_tiles)
      if (args.group.value > 4 && args.value_quads.value % 2 == 0)
        return join<join_block, 2>(team, item, from, count, last, to);
    if constexpr (Fragment::many_joined > 0)
      if (count > join_block) return join<Fragment::many_joined, 1>(team, item, from, count, last, to);
    join<join_block, join_quads>(team, item, from, count, last, to);
  }

  /// Stores the team's result as the partial state of a split, or as outputs. `noted` is read only after
  /// fragment.finish, which synchronises the team and so makes the notes visible to all.
  KOKKOS_FORCEINLINE_FUNCTION void finish(const Member& team, const WorkItem& noted, Fragment& fragment) const {
    if constexpr (shared_tiles) {
      PAGODA_UNROLL(1)
      for (int first = 0; first < Fragment::rows; first += Fragment::part_rows) {
        const StateArray<Acc> from = fragment.finish(first);
        join<1, Fragment::part_quads>(team, noted, from, 1, noted.num_splits == 1,
                                      partials(noted.slot + noted.split, 0, 1), first, Fragment::part_rows);
      }
    } else if constexpr (Fragment::part_rows > 0) {
      PAGODA_UNROLL(1)
      for (int first = 0; first < Fragment::rows; first += Fragment::part_rows) {
        const StateArray<Acc> from = fragment.finish(first);
        join<Machine::max_workers, 1>(team, noted, from, team.team_size(), noted.num_splits == 1,
                                      partials(noted.slot + noted.split, 0, 1), first, Fragment::part_rows);
      }
    } else {
      const StateArray<Acc> from = fragment.finish();
      const StateArray<Acc> to   = partials(noted.slot + noted.split, 0, 1);
      if constexpr (Fragment::joins_rows) {
        join_rows(fragment, noted, from, 1, noted.num_splits == 1, to);
      } else {
        join<Machine::max_workers, 1>(team, noted, from, team.team_size(), noted.num_splits == 1, to);
      }
    }
  }

  /// Processes the item's tokens: each worker takes its own tiles, or all workers share each tile. noted: the same item
  /// in the team's notes, where it occupies no registers.
  KOKKOS_FORCEINLINE_FUNCTION void attend(const Member& team, Fragment& fragment, const WorkItem& item,
                                          [[maybe_unused]] const SpeculativeStart& started,
                                          const WorkItem& noted) const {
    const EntryView entry = args.template entry<General>(item.batch);
    const ItemRows<General> where(args, entry, item.kv_head);
    const int step  = item.step;
    const int first = item.begin + (shared_tiles ? 0 : team.team_rank() * int(Fragment::tile_tokens));
    if constexpr (many_heads) {
      for (int h = 0; h < heads(); ++h) {
        const TileRows<General> rows(args, entry, item, h);
        fragment.select(h);
        fragment.load_queries(rows, ScoreChange<Fragment, General>(args, entry, rows, fragment).query_scale);
      }
      do {
        for (int u = first; u < item.end; u += step) {
          fragment.locate(where, u, item.end);
          for (int h = 0; h < heads(); ++h) {
            fragment.select(h);
            const ScoreChange<Fragment, General> score(args, entry, TileRows<General>(args, entry, item, h), fragment);
            multiply(fragment, score, where, u, item.end);
          }
        }
      } while (fragment.repeats());
    } else {
      const TileRows<General> rows(args, entry, item);
      const ScoreChange<Fragment, General> score(args, entry, rows, fragment);
      if constexpr (starts_speculatively) {
        if (!started.queries) {
          fragment.forget_queries();
          fragment.load_queries(rows, score.query_scale);
        }
        fragment.begin(where, first, step, item.end, started.pages, started.page);
      } else {
        if constexpr (!General) fragment.begin(where, first, step, item.end);  // first, as it takes longest
        fragment.load_queries(rows, score.query_scale);
        if constexpr (General) fragment.begin(where, first, step, item.end);
      }
      const int end = item.end;
      for (int u = first; u < end; u += least(step, end - u)) multiply(fragment, score, where, u, end);
    }
    finish(team, noted, fragment);
  }

  /// Multiplies a tile of tokens, from u on.
  KOKKOS_FORCEINLINE_FUNCTION static void multiply(Fragment& fragment, const ScoreChange<Fragment, General>& score,
                                                   const ItemRows<General>& where, int u, int end) {
    const int count  = least(int(Fragment::tile_tokens), end - u);
    const bool hides = score.hides(where.token(u), where.token(u + count - 1));
    fragment.multiply_keys(where, u, end);
    if constexpr (General)
      if (hides || score.changes)
        fragment.for_each_score(count, [&](int j, int n, Acc& s) { score(j, where.token(u + n), s); });
    fragment.softmax(hides);
    fragment.multiply_values(where, u, end, hides);
  }

  /// Every step-th partial state from a slot on. level 0: states of splits; 1: states of groups of splits.
  KOKKOS_FUNCTION StateArray<Acc> partials(int slot, int level, int step) const {
    const int tile = args.row_tile.value, rows = tile * heads(), at = slot * rows;
    return {static_cast<RowState<Acc>*>(args.partial_state) + (level * args.slots * rows + at),
            static_cast<Acc*>(args.partial_values) + at * args.value_stride,
            args.value_stride,
            rows * step,
            rows * step * args.value_stride,
            tile,
            tile * args.value_stride};
  }

  KOKKOS_FUNCTION bool last_to_arrive(const Member& team, int* counter, int of, TeamNotes* notes) const {
    team.team_barrier();  // all of the team's states are written
    if (leads(team)) {
      const bool last = Machine::arrive(counter) == of - 1;
      if (last) *counter = 0;
      notes->last = last;
    }
    team.team_barrier();  // the leader's note is written, before all read it
    return notes->last != 0;
  }

  /// The factor of the joined values of row r. A sink counts as a token without a value, and becomes part of the state.
  /// A NaN sum is stored as NaN. Only a sum of 0 means that the row sees no token.
  KOKKOS_FORCEINLINE_FUNCTION Acc weight_of_row(const TileRows<General>& rows, [[maybe_unused]] int r,
                                                RowState<Acc>& s) const {
    [[maybe_unused]] constexpr Acc infinity = Kokkos::Experimental::infinity_v<Acc>,
                                   log2e    = Kokkos::numbers::log2e_v<Acc>;
    Acc kept                                = Acc(1);
    const bool seen                         = !(s.sum == Acc(0));
    if constexpr (General) {
      const Acc sink = rows.template sink<Acc>(r) * log2e;
      if (!(sink == -infinity)) {
        const Acc most = greatest(s.most, sink);
        kept           = Machine::exp2(s.most - most);
        s              = {most, s.sum * kept + Machine::exp2(sink - most)};
      }
    }
    Acc weight = s.sum == Acc(0) ? Acc(0) : kept * reciprocal(s.sum);
    if constexpr (Fragment::scaled)
      if (seen) weight *= args.v_scale.of_head(rows.kv_head());  // a scale that no token uses may be NaN
    return weight;
  }
  KOKKOS_FORCEINLINE_FUNCTION static Acc lse_of(const RowState<Acc>& s) {
    constexpr Acc infinity = Kokkos::Experimental::infinity_v<Acc>, log2e = Kokkos::numbers::log2e_v<Acc>;
    return s.sum == Acc(0) ? -infinity : (s.most + Kokkos::log2(s.sum)) * (1 / log2e);
  }

  /// Stores dims d + step q .. d + step q + 4 of a finished row, for all q. The lane with dim 0 stores the log-sum-exp.
  template <int Quads>
  KOKKOS_FORCEINLINE_FUNCTION void store_row(const TileRows<General>& rows, int r, int d, int step, RowState<Acc> s,
                                             const Acc (&x)[Quads][4]) const {
    const Acc weight = weight_of_row(rows, r, s);
    Acc out[Quads][4];
    PAGODA_UNROLL_ALL
    for (int q = 0; q < Quads; ++q)
      for (int e = 0; e < 4; ++e) out[q][e] = x[q][e] * weight;
    rows.store_out(r, d, step, out);
    if (d == 0 && rows.wants_lse()) rows.store_lse(r, lse_of(s));
  }
};

}  // namespace pagoda::detail
