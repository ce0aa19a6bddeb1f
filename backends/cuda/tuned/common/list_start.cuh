// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/common/lanes.cuh"
#include "backends/cuda/tuned/common/list_entries.cuh"
#include "backends/cuda/tuned/common/list_work.hpp"
#include "backends/cuda/tuned/common/partials.cuh"

/// Finds where the shares of a list begin: all threads of a block together. `Work` is a ListHeadWork. An owner takes
/// heads_at_once kv heads of an entry at a time, and counts them as one. Only the entries of the owner's role (`takes`)
/// have work.
namespace pagoda::tuned {

template <class Work, class Args>
PAGODA_DEVICE Work work_of(const Args& args, const EntryView& view) {
  return Work::of(view.tokens, view.queries * args.heads.value);
}
/// Units of an entry and one of its kv heads.
template <class Work, class Args>
PAGODA_DEVICE int units_of_head(const Args& args, const Entry& e, int end) {
  const EntryView view = view_of(args, e, end);
  return e.chain < 0 ? Work::chain_units(view.tokens) : work_of<Work>(args, view).units;
}

/// Where a share begins.
struct ListStart {
  LateDivision division;
  int role;                 ///< of the block
  int entry;                ///< the entry in which it begins; the number of entries if the share is empty
  int before;               ///< units before this entry
  int owner;                ///< among all owners
  int heads_at_once, head;  ///< the worker takes each heads_at_once-th kv head, from `head` on
  int workers;              ///< of the role
};

/// Where late shares begin, in device memory. A late share has heads_at_once tickets, one for each worker that takes a
/// part of it: ticket t is for share t / heads_at_once and, of the kv heads that are read at once, for t %
/// heads_at_once. Words that are not in use are empty_sentinel.
struct LateBoard {
  /// at[0].x: tickets that have been taken, less one. at[1 + t]: of ticket t, the share's first entry and the units
  /// before this entry.
  int2* at;

  PAGODA_DEVICE void set(int ticket, int entry, int before) const {
    store_relaxed_gpu2(reinterpret_cast<float2*>(at + 1 + ticket),
                       make_float2(__int_as_float(entry), __int_as_float(before)));
  }
  /// The next ticket, for one lane. Those from `tickets` on are for no share. The last of all workers clears the count.
  PAGODA_DEVICE int take(int tickets, int workers) const {
    const int ticket = atomicAdd(&at->x, 1) + 1;
    if (ticket == tickets + workers - 1) atomicExch(&at->x, -1);
    return ticket;
  }
  /// Waits until the ticket's share has been found, and clears it.
  PAGODA_DEVICE int2 get(int ticket) const {
    float2* const from = reinterpret_cast<float2*>(at + 1 + ticket);
    float2 found;
    do found = load_relaxed_gpu2(from);
    while (!(is_written(found.x) && is_written(found.y)));
    store_sentinels(from);
    return make_int2(__float_as_int(found.x), __float_as_int(found.y));
  }
};

/// The blocks of a role, and how their workers share its entries.
struct RoleBlocks {
  int role;
  int first, count;   ///< blocks
  int workers;        ///< of a block: its first warps
  int heads_at_once;  ///< workers that are one owner: a power of two that divides the number of kv heads, and `workers`
                      ///< or `count`
  int min_units;      ///< of a share
  LateBoard late;     ///< null: no late shares
};

/// What a `Roles` says: the units of entries, and which blocks have this block's role. Blocks of a launch may have
/// several roles, each with entries of its own. Units of role 1 are counted as negative numbers.
template <class Work>
struct OneRole {
  static constexpr int count = 1;
  static constexpr bool late = Work::late;
  int workers, heads_at_once, min_units;  ///< see RoleBlocks
  LateBoard board{};

  /// Of an entry, for all of its kv heads. Entries behind the first one of a chain count as parts of it.
  template <class Base>
  PAGODA_DEVICE int units_of(const ListArgsOf<Base>& args, const Entry& e, int end) const {
    return counts(args, e) ? heads_of(args, e) * units_of_head<Work>(args, e, end) : 0;
  }
  /// totals: units of each role. entries, largest: see UnitsWindow.
  PAGODA_DEVICE RoleBlocks blocks_of(const int (& /*totals*/)[count], const int (& /*entries*/)[count],
                                     const int (& /*largest*/)[count]) const {
    return {0, 0, static_cast<int>(gridDim.x), workers, heads_at_once, min_units, board};
  }
};

/// Units of a run of entries, in shared memory. All threads of the block make one together.
///
/// It runs once in each block, before any tile is copied, so instructions have to be loaded for it. There is one copy
/// of its code, and only loads that have to be under way at the same time are unrolled.
template <class Roles, int Threads, int Capacity>
struct UnitsWindow {
  int begin = 0, end = 0;  ///< the thread's entries, counted from the window's first
  /// Of each role: units of the window before the thread's entries, of these, and of the window, for one kv head at a
  /// time.
  int before[Roles::count] = {}, units[Roles::count] = {}, total[Roles::count] = {};
  /// Of each role: entries with work, a chain counted as one, and units of the largest, for all of its kv heads.
  int entries[Roles::count] = {}, largest[Roles::count] = {};
  bool single_heads = false;  ///< the window has an entry of one kv head

  UnitsWindow() = default;
  /// units_of: [Capacity]; sums: [Threads / 32][roles], each warp's units, entries and units of the largest one. Both
  /// may be read by the block until it calls this again.
  template <class Args>
  PAGODA_DEVICE UnitsWindow(const Roles& roles, const Args& args, int first, int* units_of, int4* sums) {
    constexpr int loads = 5;
    bool single         = false;
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
    const int count = min(args.batch - first, Capacity);
    int cut = 0, cut_end = 0;  // a chain that ends behind the window, if cut_end is not 0
    __syncthreads();           // all have read the window before
    if (args.chains) {
#pragma unroll 1
      for (int i = thread; i < count; i += Threads) units_of[i] = 0;
      __syncthreads();
    }
#pragma unroll 1
    for (int from = thread; from < count; from += loads * Threads) {
      Entry e[loads];
      int ends[loads];
#pragma unroll
      for (int i = 0; i < loads; ++i) e[i] = stored_entry(args, first + min(from + i * Threads, count - 1));
#pragma unroll
      for (int i = 0; i < loads; ++i) ends[i] = end_of(args, e[i]);
#pragma unroll
      for (int i = 0; i < loads; ++i) {
        const int at = from + i * Threads;
        if (at >= count) break;
        single |= e[i].kv_head >= 0;
        const int units = roles.units_of(args, e[i], ends[i]);
        if (!args.chains) {
          units_of[at] = units;
          continue;
        }
        const int to = at + min(e[i].chain, 0);  // negative: an earlier window has the chain's first entry
        if (to >= 0) atomicAdd(units_of + to, units);
        if (at + e[i].chain >= count) cut = at, cut_end = at + e[i].chain + 1;
      }
    }
#pragma unroll 1
    for (int beyond = count; beyond < cut_end; ++beyond) {
      const Entry e = stored_entry(args, first + beyond);
      atomicAdd(units_of + cut, roles.units_of(args, e, end_of(args, e)));
    }
    single_heads   = __syncthreads_or(single);
    const int each = ((count + Threads - 1) / Threads) | 1;  // odd: lanes read different banks
    begin = min(thread * each, count), end = min(begin + each, count);
#pragma unroll 1
    for (int i = begin; i < end; ++i) {
#pragma unroll
      for (int r = 0; r < Roles::count; ++r) {
        const int of = of_role(units_of[i], r);
        units[r] += of, entries[r] += of > 0, largest[r] = max(largest[r], of);
      }
    }
#pragma unroll
    for (int r = 0; r < Roles::count; ++r) {
      before[r]  = inclusive_sum(units[r], lane);
      entries[r] = __reduce_add_sync(~0u, entries[r]), largest[r] = __reduce_max_sync(~0u, largest[r]);
      if (lane == 31) sums[warp * Roles::count + r] = make_int4(before[r], entries[r], largest[r], 0);
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < Roles::count; ++r) {
      before[r] -= units[r], entries[r] = 0;
      for (int w = 0; w < Threads / 32; ++w) {
        const int4 of_warp = sums[w * Roles::count + r];
        if (w < warp) before[r] += of_warp.x;
        total[r] += of_warp.x, entries[r] += of_warp.y, largest[r] = max(largest[r], of_warp.z);
      }
    }
  }
  /// What an entry's units are for a role.
  PAGODA_DEVICE static int of_role(int units, int role) {
    return Roles::count == 1 ? units : max(role == 0 ? units : -units, 0);
  }
};

/// Ints of shared memory that find_start needs besides `Capacity`.
PAGODA_HOST_DEVICE constexpr int start_memory(int threads, int most_owners, int roles = 1) {
  return threads / 32 * roles * 4 + 2 * most_owners;
}

/// Where the share of a warp begins; warps that are no workers get that of the last worker. All threads of the block
/// call it. A single worker is an owner if an entry of the list has one kv head.
/// memory: [Capacity + start_memory], aligned to 16 bytes.
template <int Threads, int Capacity, class Roles, class Args>
PAGODA_DEVICE ListStart find_start(const Roles& roles, const Args& args, int* memory, int warp) {
  using Window        = UnitsWindow<Roles, Threads, Capacity>;
  int4* const sums    = reinterpret_cast<int4*>(memory);
  int* const units_of = memory + Threads / 32 * Roles::count * 4;
  int* const found    = units_of + Capacity;
  const int thread    = static_cast<int>(threadIdx.x);
  Window window;
  int totals[Roles::count] = {}, entries[Roles::count] = {}, largest[Roles::count] = {}, earlier = 0;
  bool single = false;
  RoleBlocks blocks{};
  LateDivision division{};
  int shift = 0, first_worker = 0, first_owner = 0, owners = 0;  // an owner has 1 << shift workers
  const auto of_block = [&](const int (&x)[Roles::count]) { return blocks.role == 0 ? x[0] : x[Roles::count - 1]; };
  // Counts the units of all windows, then finds the owners of the block.
#pragma unroll 1
  for (int pass = 0; pass < 2; ++pass) {
#pragma unroll 1
    for (int first = 0; first < args.batch; first += Capacity) {
      if (pass == 0 || args.batch > Capacity) window = Window(roles, args, first, units_of, sums);
      if (pass == 0) {
        single |= window.single_heads;
#pragma unroll
        for (int r = 0; r < Roles::count; ++r) {
          totals[r] += window.total[r], entries[r] += window.entries[r];
          largest[r] = max(largest[r], window.largest[r]);
        }
        continue;
      }
      int before       = earlier + of_block(window.before);
      const int behind = before + of_block(window.units);
      int at           = window.begin;
      // Goes to the entry that has the unit, if it is one of the thread's. Units ascend from call to call.
      const auto find = [&](int unit) {
        if (unit < before || unit >= behind) return false;
        const auto units = [&] { return Window::of_role(units_of[at], blocks.role); };
        while (unit >= before + units()) before += units(), ++at;
        return true;
      };
#pragma unroll 1
      for (int owner = 0; owner < owners; ++owner)
        if (find(division.own.begin(first_owner + owner) << shift))
          found[2 * owner] = first + at, found[2 * owner + 1] = before;
      if (Roles::late && division.late_count > 0) [[unlikely]] {
        const int end = min((first_owner + owners) * LateDivision::most_each, division.late_count);
#pragma unroll 1
        for (int late = first_owner * LateDivision::most_each; late < end; ++late) {
          if (!find(division.begin_of(division.own.owners + late) << shift)) continue;
          for (int i = 0; i < 1 << shift; ++i) blocks.late.set((late << shift) + i, first + at, before >> shift);
        }
      }
      earlier += of_block(window.total);
    }
    if (pass == 1) break;
    blocks          = roles.blocks_of(totals, entries, largest);
    const int total = of_block(totals);
    shift           = single ? 0 : __ffs(blocks.heads_at_once) - 1;
    first_worker    = (static_cast<int>(blockIdx.x) - blocks.first) * blocks.workers;
    first_owner     = first_worker >> shift;
    owners          = max(blocks.workers >> shift, 1);  // of this block
    const int most  = (blocks.count * blocks.workers) >> shift;
    if (Roles::late && !single && blocks.late.at && total > 0) [[unlikely]]
      division = LateDivision::of(total >> shift, of_block(largest) / args.num_kv_heads.value, most, blocks.min_units);
    if (division.late_count == 0) {
      const int even = even_owners(of_block(entries), args.num_kv_heads.value >> shift, total, of_block(largest), most);
      division       = LateDivision(WorkDivision::of(total >> shift, single ? most : even, blocks.min_units));
    }
    if (thread < owners && division.own.begin(first_owner + thread) << shift >= total)
      found[2 * thread] = args.batch, found[2 * thread + 1] = total;  // no thread finds it
  }
  __syncthreads();
  const int worker = min(warp, blocks.workers - 1), mine = worker >> shift, owner = first_owner + mine;
  const ListStart start{division,
                        blocks.role,
                        found[2 * mine],
                        found[2 * mine + 1] >> shift,
                        owner,
                        1 << shift,
                        first_worker + worker - (owner << shift),
                        blocks.count * blocks.workers};
  __syncthreads();
  return start;
}

}  // namespace pagoda::tuned
