// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/plan/work.hpp"

#include <Kokkos_Core.hpp>

#include <cstdint>

/// The plain split: cuts the rows of a batch so that the machine is busy whatever the lengths, and fills in the list of
/// work items on the device, from the lengths as they are when it runs.
namespace pagoda::detail {

/// Entry b's first item, first merge and first partial state.
struct RowOffsets {
  int item, merge, partial;
};

/// One team works the list out. Rows are cut in pieces of at most `chunk` tokens, where chunk is
///  - at least an even share of all work, total / target_items, so no item is much longer than the others;
///  - the smallest for which the items do not outnumber target_items, while there are fewer rows than that, so that
///    equal rows get equal pieces and one round of teams carries everything;
///  - within [min_piece, max_piece], except that it is never so short that there are more than max_cuts cuts.
/// Hence items <= rows + total / chunk <= rows + max_cuts: the bound the workspace is sized by.
template <class ExecutionSpace>
struct SplitKernel {
  using Policy = Kokkos::TeamPolicy<ExecutionSpace>;
  using Member = typename Policy::member_type;
  KernelArgs args;
  RowOffsets* offsets;  ///< [batch]

  KOKKOS_FUNCTION int items_for(const Member& team, int chunk) const {
    int items = 0;
    Kokkos::parallel_reduce(
        Kokkos::TeamThreadRange(team, args.batch),
        [&](int b, int& sum) {
          const RowCut cut = cut_row(visible_count(args, b), row_tiles(args, b), chunk, args.min_piece);
          sum += cut.tiles * cut.pieces;
        },
        items);
    return items;
  }

  KOKKOS_FUNCTION int choose_chunk(const Member& team) const {
    const int align     = args.min_piece;
    const auto align_up = [&](std::int64_t n) { return static_cast<int>((n + align - 1) / align * align); };
    std::int64_t total  = 0;
    int rows = 0, longest = 0;
    Kokkos::parallel_reduce(
        Kokkos::TeamThreadRange(team, args.batch),
        [&](int b, std::int64_t& sum) {
          sum += static_cast<std::int64_t>(visible_count(args, b)) * row_tiles(args, b);
        },
        total);
    Kokkos::parallel_reduce(
        Kokkos::TeamThreadRange(team, args.batch), [&](int b, int& sum) { sum += row_tiles(args, b); }, rows);
    Kokkos::parallel_reduce(
        Kokkos::TeamThreadRange(team, args.batch),
        [&](int b, int& most) { most = Kokkos::max(most, visible_count(args, b)); }, Kokkos::Max<int>(longest));

    const std::int64_t share = Kokkos::min<std::int64_t>(longest, (total + args.target_items - 1) / args.target_items);
    int low                  = Kokkos::max(align, align_up(share));
    if (rows < args.target_items) {
      // items(chunk) <= rows + total / chunk, so this chunk fits for certain; search below it.
      const std::int64_t spare = args.target_items - rows;
      int high = Kokkos::max(low, align_up(Kokkos::min<std::int64_t>(longest, (total + spare - 1) / spare)));
      while (high - low > Kokkos::max(align, low / 32)) {
        const int middle = align_up(low + (high - low) / 2);
        if (middle >= high) break;
        if (items_for(team, middle) <= args.target_items) {
          high = middle;
        } else {
          low = middle;
        }
      }
      if (items_for(team, low) > args.target_items) low = high;
    }
    // Sequences longer than the plan was told of would otherwise make more pieces than the workspace has room for.
    const std::int64_t fits = Kokkos::min<std::int64_t>(longest, (total + args.max_cuts - 1) / args.max_cuts);
    return Kokkos::max(Kokkos::min(low, args.max_piece), align_up(fits));
  }

  KOKKOS_FUNCTION void operator()(const Member& team) const {
    const int chunk = choose_chunk(team);
    const auto cut  = [&](int b) { return cut_row(visible_count(args, b), row_tiles(args, b), chunk, args.min_piece); };

    int items = 0, merges = 0, partials = 0;
    Kokkos::parallel_scan(
        Kokkos::TeamThreadRange(team, args.batch),
        [&](int b, int& before, bool final) {
          const RowCut c = cut(b);
          if (final) offsets[b].item = before;
          before += c.tiles * c.pieces;
        },
        items);
    Kokkos::parallel_scan(
        Kokkos::TeamThreadRange(team, args.batch),
        [&](int b, int& before, bool final) {
          const RowCut c = cut(b);
          if (final) offsets[b].merge = before;
          before += c.pieces > 1 ? c.tiles : 0;
        },
        merges);
    Kokkos::parallel_scan(
        Kokkos::TeamThreadRange(team, args.batch),
        [&](int b, int& before, bool final) {
          const RowCut c = cut(b);
          if (final) offsets[b].partial = before;
          before += c.pieces > 1 ? c.tiles * c.pieces : 0;
        },
        partials);
    team.team_barrier();
    Kokkos::single(Kokkos::PerTeam(team), [&] { *args.counts = {items, merges}; });

    Kokkos::parallel_for(Kokkos::TeamThreadRange(team, items), [&](int i) {
      int b = 0;  // the last entry whose first item is not behind i
      for (int span = args.batch; span > 1;) {
        const int step = span / 2;
        if (offsets[b + step].item <= i) b += step;
        span -= step;
      }
      const RowCut c         = cut(b);
      const RowOffsets first = offsets[b];
      const int local = i - first.item, tile = local / c.pieces, piece = local % c.pieces;
      const int tokens = visible_count(args, b), tiles_of_head = c.tiles / args.num_kv_heads;
      WorkItem item{};
      item.batch    = b;
      item.kv_head  = tile / tiles_of_head;
      item.row_tile = tile % tiles_of_head;
      item.begin    = Kokkos::min(tokens, piece * c.length);
      item.end      = Kokkos::min(tokens, item.begin + c.length);
      item.partial  = c.pieces > 1 ? first.partial + local : -1;
      args.items[i] = item;
      if (c.pieces > 1 && piece == 0)
        args.merges[first.merge + tile] = {b, item.kv_head, item.row_tile, item.partial, c.pieces};
    });
  }
};

}  // namespace pagoda::detail
