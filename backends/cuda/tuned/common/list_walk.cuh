// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/common/list_entries.cuh"
#include "backends/cuda/tuned/common/list_work.hpp"

/// Finds the shares of a list that the owners of a block carry out. The whole block finds where they begin. Then a warp
/// goes through a share by itself. `Work` is a ListHeadWork. An owner takes heads_at_once kv heads of an entry at a
/// time, and counts them as one.
namespace pagoda::tuned {

template <class Work, class Args>
PAGODA_DEVICE Work work_of(const Args& args, const EntryView& view) {
  return Work::of(view.tokens, view.queries * args.heads.value);
}

/// Where a share begins.
struct ListStart {
  ListDivision division;
  int entry;                ///< the entry in which it begins; the number of entries if the share is empty
  int before;               ///< units before this entry
  int owner;                ///< among all owners
  int heads_at_once, head;  ///< the worker takes each heads_at_once-th kv head, from `head` on
};

/// Units of a run of entries, in shared memory. All threads of the block make one together.
template <class Work, int Threads, int Capacity>
struct UnitsWindow {
  int begin, end;     ///< the thread's entries, counted from the window's first
  int before, units;  ///< units of the window before the thread's entries, and of these
  int total;          ///< units of the window, for one kv head at a time
  bool single_heads;  ///< the window has an entry of one kv head

  /// units: [Capacity]; sums: [Threads / 32]. Both may be read by the block until it calls this again.
  template <class Args>
  PAGODA_DEVICE UnitsWindow(const Args& args, int first, int* units_of, int* sums) {
    constexpr int loads = 8;
    bool single         = false;
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
    const int count = min(args.batch - first, Capacity);
    __syncthreads();  // all have read the window before
#pragma unroll 1
    for (int from = thread; from < count; from += loads * Threads) {
      Entry e[loads];
      int ends[loads];
#pragma unroll
      for (int i = 0; i < loads; ++i) e[i] = list_entry(args, first + min(from + i * Threads, count - 1));
#pragma unroll
      for (int i = 0; i < loads; ++i) ends[i] = end_of(args, e[i]);
#pragma unroll
      for (int i = 0; i < loads; ++i) {
        single |= e[i].kv_head >= 0;
        if (from + i * Threads < count)
          units_of[from + i * Threads] = heads_of(args, e[i]) * work_of<Work>(args, view_of(args, e[i], ends[i])).units;
      }
    }
    single_heads   = __syncthreads_or(single);
    const int each = ((count + Threads - 1) / Threads) | 1;  // odd: lanes read different banks
    begin = min(thread * each, count), end = min(begin + each, count);
    units = 0;
    for (int i = begin; i < end; ++i) units += units_of[i];
    before = units;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const int other = __shfl_up_sync(~0u, before, d);
      if (lane >= d) before += other;
    }
    if (lane == 31) sums[warp] = before;
    __syncthreads();
    before -= units, total = 0;
    for (int w = 0; w < Threads / 32; ++w) {
      if (w < warp) before += sums[w];
      total += sums[w];
    }
  }
};

/// Ints of shared memory that find_start needs besides `Capacity`.
PAGODA_HOST_DEVICE constexpr int start_memory(int threads, int most_owners) { return threads / 32 + 2 * most_owners; }

/// Where the share of a worker of the block begins.
/// memory: [Capacity + start_memory(Threads, Workers)]. The block's Workers are divided among owners: `heads_at_once`,
/// a divisor of Workers and of the number of kv heads, make one, or a single one if an entry of the list has one kv
/// head. min_units: of a share. All threads of the block call it.
template <class Work, int Threads, int Capacity, int Workers, class Args>
PAGODA_DEVICE ListStart find_start(const Args& args, int* memory, int min_units, int heads_at_once, int worker) {
  using Window     = UnitsWindow<Work, Threads, Capacity>;
  int* const sums  = memory + Capacity;
  int* const found = sums + Threads / 32;
  Window window(args, 0, memory, sums);
  int total   = window.total;
  bool single = window.single_heads;
#pragma unroll 1
  for (int first = Capacity; first < args.batch; first += Capacity) {
    const Window next(args, first, memory, sums);
    total += next.total, single |= next.single_heads;
  }
  if (single) heads_at_once = 1;
  const int owners = Workers / heads_at_once;
  const ListDivision division =
      ListDivision::of(total / heads_at_once, static_cast<int>(gridDim.x) * owners, min_units);
  const int first_owner = static_cast<int>(blockIdx.x) * owners;
  if (static_cast<int>(threadIdx.x) < owners &&
      division.begin(first_owner + static_cast<int>(threadIdx.x)) * heads_at_once >= total)
    found[2 * threadIdx.x] = args.batch, found[2 * threadIdx.x + 1] = total;  // no thread finds it
  int earlier = 0;
#pragma unroll 1
  for (int first = 0; first < args.batch; first += Capacity) {
    if (args.batch > Capacity) window = Window(args, first, memory, sums);
#pragma unroll 1
    for (int owner = 0; owner < owners; ++owner) {
      const int begin = division.begin(first_owner + owner) * heads_at_once;
      int before      = earlier + window.before;
      if (begin >= before && begin < before + window.units) {
        int i = window.begin;
        while (begin >= before + memory[i]) before += memory[i++];
        found[2 * owner] = first + i, found[2 * owner + 1] = before;
      }
    }
    earlier += window.total;
  }
  __syncthreads();
  const int mine = worker / heads_at_once;
  const ListStart start{division,           found[2 * mine], found[2 * mine + 1] / heads_at_once,
                        first_owner + mine, heads_at_once,   worker - mine * heads_at_once};
  __syncthreads();
  return start;
}

/// An owner's split of a batch head.
struct ListSegment {
  int index;  ///< of the entry
  int head;
  EntryView entry;
  int state;
  bool to_end;  ///< the entry goes to the end of its sequence
  HeadShare share;
};

/// Goes through the segments of a share, for one warp. Lanes load entries, 32 at a time.
template <class Work>
class ListWalk {
 public:
  template <class Args>
  PAGODA_DEVICE ListWalk(const Args& args, const ListStart& start, int lane)
      : division_(start.division),
        owner_(start.owner),
        heads_at_once_(start.heads_at_once),
        first_head_(start.head),
        heads_(args.num_kv_heads.value / start.heads_at_once),
        index_(start.entry),
        position_(start.before) {
    if (index_ >= args.batch) return;
    load(args, lane);
    select(args);
    // The share begins in one of the entry's kv heads.
    const int earlier = (division_.begin(owner_) - position_) / work_.units;
    head_ += earlier * heads_at_once_, heads_left_ -= earlier, position_ += earlier * work_.units;
  }

  /// Finds the next segment. Returns false if there is none. All lanes call it.
  template <class Args>
  PAGODA_DEVICE bool next(const Args& args, int lane, ListSegment& s) {
    while (index_ < args.batch) {
      if (heads_left_ == 0) {
        if (++index_ >= args.batch) return false;
        if (index_ - first_ == 32) load(args, lane);
        select(args);
        continue;
      }
      s.share = HeadShare::of(work_, position_, division_, owner_);
      if (s.share.last) return false;
      s.index = index_, s.head = head_, s.entry = entry_, s.state = state_, s.to_end = to_end_;
      head_ += heads_at_once_, --heads_left_, position_ += work_.units;
      if (s.share.any) return true;
    }
    return false;
  }
  /// The entry behind that of the last segment, if it has been loaded and has query tokens. All lanes call it.
  template <class Args>
  PAGODA_DEVICE bool peek(const Args& args, EntryView& e, bool& to_end) const {
    const int index = index_ + 1, lane = index - first_;
    if (index >= args.batch || lane >= 32) return false;
    e = view_in(lane), to_end = __shfl_sync(~0u, lane_raw_.last, lane) < 0;
    return e.queries > 0;  // otherwise its sequence may be anything
  }

 private:
  PAGODA_DEVICE EntryView view_in(int lane) const {
    const auto of = [&](int x) { return __shfl_sync(~0u, x, lane); };
    return {of(lane_view_.sequence), of(lane_view_.first), of(lane_view_.tokens), of(lane_view_.query_begin),
            of(lane_view_.queries)};
  }
  /// Loads the entries from index_ on, one to each lane.
  template <class Args>
  PAGODA_DEVICE void load(const Args& args, int lane) {
    first_     = index_;
    lane_raw_  = list_entry(args, min(index_ + lane, args.batch - 1));
    lane_view_ = view_of(args, lane_raw_, end_of(args, lane_raw_));
  }
  /// Takes entry index_ from its lane.
  template <class Args>
  PAGODA_DEVICE void select(const Args& args) {
    const int lane    = index_ - first_;
    const auto of     = [&](int x) { return __shfl_sync(~0u, x, lane); };
    entry_            = view_in(lane);
    state_            = of(lane_raw_.state);
    to_end_           = of(lane_raw_.last) < 0;
    work_             = work_of<Work>(args, entry_);
    const int kv_head = of(lane_raw_.kv_head);
    heads_left_       = entry_.queries == 0 ? 0 : kv_head >= 0 ? 1 : heads_;
    head_             = kv_head >= 0 ? kv_head : first_head_;
  }

  ListDivision division_;
  int owner_, heads_at_once_, first_head_;
  int heads_;         ///< that the worker takes of an entry
  int first_ = 0;     ///< entry of lane 0
  Entry lane_raw_{};  ///< the lane's entry
  EntryView lane_view_{};
  int index_, position_;  ///< entry, and units before the batch head
  EntryView entry_{};     ///< entry index_
  Work work_{};
  int state_ = 0, head_ = 0, heads_left_ = 0;
  bool to_end_ = false;
};

}  // namespace pagoda::tuned
