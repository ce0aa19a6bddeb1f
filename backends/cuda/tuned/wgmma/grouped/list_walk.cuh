// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/wgmma/grouped/list_tuning.hpp"
#include "backends/cuda/tuned/wgmma/rows.cuh"

/// Finds the part of a list that a block processes, its share. The whole block finds where the share begins. Then each
/// of the two warps that load data goes through the share by itself.
namespace pagoda::tuned::wgmma::grouped {

/// kv heads of an entry.
PAGODA_DEVICE int heads_of(const ListArgs& args, const Entry& e) {
  return e.num_queries <= 0 ? 0 : e.kv_head >= 0 ? 1 : args.num_kv_heads.value;
}
PAGODA_DEVICE HeadWork work_of(const ListArgs& args, const EntryView& view) {
  return HeadWork::of(view.tokens, view.queries * args.heads.value);
}

/// Where a block's share begins.
struct ListStart {
  ListDivision division;
  int entry;   ///< the entry in which it begins; ListArgs::batch if the share is empty
  int before;  ///< units before this entry
};

/// Units of a run of entries, in shared memory. All threads of the block make one together.
template <int Threads, int Capacity>
struct UnitsWindow {
  int begin, end;     ///< the thread's entries, counted from the window's first
  int before, units;  ///< units of the window before the thread's entries, and of these
  int total;          ///< units of the window

  /// units: [Capacity]; sums: [Threads / 32]. Both may be read by the block until it calls this again.
  PAGODA_DEVICE UnitsWindow(const ListArgs& args, int first, int* units_of, int* sums) {
    constexpr int loads = 8;
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
      for (int i = 0; i < loads; ++i)
        if (from + i * Threads < count)
          units_of[from + i * Threads] = heads_of(args, e[i]) * work_of(args, view_of(args, e[i], ends[i])).units;
    }
    __syncthreads();
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

/// memory: [Capacity + Threads / 32 + 2], free again when this returns. All threads of the block call it.
template <int Threads, int Capacity>
PAGODA_DEVICE ListStart find_start(const ListArgs& args, int* memory) {
  using Window     = UnitsWindow<Threads, Capacity>;
  int* const sums  = memory + Capacity;
  int* const found = sums + Threads / 32;
  Window window(args, 0, memory, sums);
  int total = window.total;
#pragma unroll 1
  for (int first = Capacity; first < args.batch; first += Capacity) total += Window(args, first, memory, sums).total;
  const ListDivision division = ListDivision::of(total, static_cast<int>(gridDim.x));
  const int begin             = division.begin(static_cast<int>(blockIdx.x));
  if (begin >= total && threadIdx.x == 0) found[0] = args.batch, found[1] = total;  // no thread finds it
  int earlier = 0;
#pragma unroll 1
  for (int first = 0; first < args.batch; first += Capacity) {
    if (args.batch > Capacity) window = Window(args, first, memory, sums);
    int before = earlier + window.before;
    if (begin >= before && begin < before + window.units) {
      int i = window.begin;
      while (begin >= before + memory[i]) before += memory[i++];
      found[0] = first + i, found[1] = before;
    }
    earlier += window.total;
  }
  __syncthreads();
  const ListStart start{division, found[0], found[1]};
  __syncthreads();
  return start;
}

/// A block's split of a batch head.
struct ListSegment {
  int index;  ///< of the entry
  int head;
  EntryView entry;
  int state;
  bool to_end;  ///< the entry goes to the end of its sequence
  HeadShare share;
};

/// Goes through the segments of a block, for one warp. Lanes load entries, 32 at a time.
class ListWalk {
 public:
  PAGODA_DEVICE ListWalk(const ListArgs& args, const ListStart& start, int lane)
      : division_(start.division), index_(start.entry), position_(start.before) {
    if (index_ >= args.batch) return;
    load(args, lane);
    select(args);
    // The share begins in one of the entry's kv heads.
    const int earlier = (division_.begin(static_cast<int>(blockIdx.x)) - position_) / work_.units;
    head_ += earlier, heads_left_ -= earlier, position_ += earlier * work_.units;
  }

  /// Finds the next segment. Returns false if there is none. All lanes call it.
  PAGODA_DEVICE bool next(const ListArgs& args, int lane, ListSegment& s) {
    while (index_ < args.batch) {
      if (heads_left_ == 0) {
        if (++index_ >= args.batch) return false;
        if (index_ - first_ == 32) load(args, lane);
        select(args);
        continue;
      }
      s.share = HeadShare::of(work_, position_, division_, static_cast<int>(blockIdx.x));
      if (s.share.last) return false;
      s.index = index_, s.head = head_, s.entry = entry_, s.state = state_, s.to_end = to_end_;
      ++head_, --heads_left_, position_ += work_.units;
      if (s.share.any) return true;
    }
    return false;
  }

 private:
  /// Loads the entries from index_ on, one to each lane.
  PAGODA_DEVICE void load(const ListArgs& args, int lane) {
    first_     = index_;
    lane_raw_  = list_entry(args, min(index_ + lane, args.batch - 1));
    lane_view_ = view_of(args, lane_raw_, end_of(args, lane_raw_));
  }
  /// Takes entry index_ from its lane.
  PAGODA_DEVICE void select(const ListArgs& args) {
    const int lane = index_ - first_;
    const auto of  = [&](int x) { return __shfl_sync(~0u, x, lane); };
    entry_         = {of(lane_view_.sequence), of(lane_view_.first), of(lane_view_.tokens), of(lane_view_.query_begin),
                      of(lane_view_.queries)};
    state_         = of(lane_raw_.state);
    to_end_        = of(lane_raw_.last) < 0;
    work_          = work_of(args, entry_);
    const int kv_head = of(lane_raw_.kv_head);
    heads_left_       = entry_.queries == 0 ? 0 : kv_head >= 0 ? 1 : args.num_kv_heads.value;
    head_             = max(kv_head, 0);
  }

  ListDivision division_;
  int first_ = 0;     ///< entry of lane 0
  Entry lane_raw_{};  ///< the lane's entry
  EntryView lane_view_{};
  int index_, position_;  ///< entry, and units before the batch head
  EntryView entry_{};     ///< entry index_
  HeadWork work_{};
  int state_ = 0, head_ = 0, heads_left_ = 0;
  bool to_end_ = false;
};

}  // namespace pagoda::tuned::wgmma::grouped
