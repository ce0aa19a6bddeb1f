// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/kernel/kernel_args.hpp"
#include "src/kernel/machine.hpp"
#include "src/kernel/score.hpp"
#include "src/plan/work.hpp"

#include <Kokkos_Core.hpp>

namespace pagoda::detail {

/// Tokens of a work item: where the row of visible token u lies. The page table is consulted once per row of a tile and
/// never inside the loops over dims.
struct ItemRows {
  const KernelArgs& args;
  VisibleTokens visible;
  int sequence, kv_head;

  KOKKOS_FUNCTION ItemRows(const KernelArgs& a, const WorkItem& item)
      : args(a),
        visible(a.score, a.seq_len(item.batch), a.query_len(item.batch)),
        sequence(a.sequence(item.batch)),
        kv_head(item.kv_head) {}

  KOKKOS_FUNCTION TokenRow operator()(int u) const {
    const int token = visible.token(u);
    const int index = token / args.page_size, slot = token - index * args.page_size;
    const std::int64_t page = args.page(sequence, index);
    return {page * args.k_page + slot * args.k_token + kv_head * args.k_head,
            page * args.v_page + slot * args.v_token + kv_head * args.v_head};
  }
};

/// Query rows of a tile: row r is (query token, q head), counted over the tokens of a batch entry and the heads of a
/// group.
struct TileRows {
  const KernelArgs& args;
  int query_begin, first, count, head0;

  KOKKOS_FUNCTION TileRows(const KernelArgs& a, int batch, int kv_head, int row_tile)
      : args(a),
        query_begin(a.query_begin(batch)),
        first(row_tile * a.row_tile),
        count(Kokkos::min(a.row_tile, a.query_len(batch) * a.group - first)),
        head0(kv_head * a.group) {}

  KOKKOS_FUNCTION bool valid(int r) const { return r < count; }
  /// Which of the entry's query tokens row r is.
  KOKKOS_FUNCTION int query(int r) const { return (first + r) / args.group; }
  KOKKOS_FUNCTION int head(int r) const { return head0 + (first + r) % args.group; }
  KOKKOS_FUNCTION std::int64_t offset(const DeviceArray& a, int r) const {
    return (query_begin + query(r)) * a.stride0 + head(r) * a.stride1;
  }
  template <class Acc>
  KOKKOS_FUNCTION void store_out(int r, int d, Acc value) const {
    store_element(args.out.data, args.out.type, offset(args.out, r) + d * args.out.stride2, value);
  }
  template <class Acc>
  KOKKOS_FUNCTION void store_lse(int r, Acc value) const {
    if (args.lse.data) store_element(args.lse.data, args.lse.type, offset(args.lse, r), value);
  }
  /// Natural logit of row r's sink, -infinity where there is none.
  template <class Acc>
  KOKKOS_FUNCTION Acc sink(int r) const {
    return args.score.sinks ? Acc(args.score.sinks[head(r)]) : -Kokkos::Experimental::infinity_v<Acc>;
  }
};

/// The generic decode kernel: one team carries out one work item, whatever planned it. Its workers take the item's
/// tiles of tokens in turn and meet once, at the end. T: element type of the cache; R: query rows per item; Scored:
/// some score option is on. How rows are read and multiplied is the machine's fragment.
template <class ExecutionSpace, class T, int R, bool Wide, bool Scored>
struct PartialKernel {
  using Machine  = MachineOf<ExecutionSpace>;
  using Member   = typename Machine::Member;
  using Fragment = typename Machine::template Fragment<T, R, Wide>;
  using Acc      = typename Fragment::Acc;
  KernelArgs args;

  KOKKOS_FUNCTION void operator()(const Member& team) const {
    if (team.league_rank() >= args.counts->items) return;
    const WorkItem item = args.items[team.league_rank()];
    const TileRows rows(args, item.batch, item.kv_head, item.row_tile);
    const ItemRows where(args, item);
    const ScoreChange<Acc, R, Scored> score(args, item, rows);

    Fragment fragment(team, args.head_dim, args.head_dim_v);
    fragment.load_queries([&](int r, int d) {
      if (!rows.valid(r)) return Acc(0);
      return load_element<Acc>(args.q.data, args.q.type, rows.offset(args.q, r) + d * args.q.stride2) *
             score.query_scale;
    });

    const T* const k   = static_cast<const T*>(args.k);
    const T* const v   = static_cast<const T*>(args.v);
    constexpr int tile = Fragment::tile_tokens;
    for (int u = item.begin + team.team_rank() * tile; u < item.end; u += team.team_size() * tile) {
      const int count = Kokkos::min(tile, item.end - u);
      fragment.multiply_keys(k, v, args.k_dim, count, item.end - u, [&](int n) { return where(u + n); });
      if constexpr (Scored)
        fragment.for_each_score(count, [&](int r, int n, Acc& s) { score(r, where.visible.token(u + n), s); });
      fragment.softmax();
      fragment.multiply_values(v, args.v_dim, count);
    }

    const bool whole = item.partial < 0;
    Acc* const partial_out =
        static_cast<Acc*>(args.partial_out) + static_cast<std::int64_t>(item.partial) * R * args.head_dim_v;
    Acc* const partial_lse = static_cast<Acc*>(args.partial_lse) + static_cast<std::int64_t>(item.partial) * R;
    fragment.finish(
        [&](int r) {
          return Scored && whole && rows.valid(r) ? rows.template sink<Acc>(r) : -Kokkos::Experimental::infinity_v<Acc>;
        },
        [&](int r, int d, Acc value) {
          if (!whole)
            partial_out[r * args.head_dim_v + d] = value;
          else if (rows.valid(r))
            rows.store_out(r, d, value);
        },
        [&](int r, Acc value) {
          if (!whole)
            partial_lse[r] = value;
          else if (rows.valid(r))
            rows.store_lse(r, value);
        });
  }
};

}  // namespace pagoda::detail
