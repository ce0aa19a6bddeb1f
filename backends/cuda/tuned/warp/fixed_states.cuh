// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/warp/fixed_join.cuh"
#include "backends/cuda/tuned/warp/kernel.cuh"

/// Fixed splits: the states of a block's splits in shared memory.
namespace pagoda::tuned::warp {

/// Sums of states of an output quad: of the run that has begun, and of the runs before.
struct alignas(16) QuadSums {
  float4 values[2];
  float2 states[2];

  PAGODA_DEVICE QuadState get(int i) const { return {values[i], states[i].x, states[i].y}; }
  PAGODA_DEVICE void set(int i, const QuadState& x) {
    values[i] = x.values, states[i] = make_float2(x.row_max, x.row_sum);
  }
};
static_assert(sizeof(QuadSums) == fixed_sums_bytes);

/// Which split a state belongs to.
struct SplitOf {
  int batch, head;
  int split;   ///< of the batch head
  int slot;    ///< of the split's partial result
  bool last;   ///< of the batch head
  bool alone;  ///< the block has the whole batch head
};

/// The states of a block's splits, on their way to outputs and partial results. Warps leave theirs in shared memory.
/// All warps merge a split together, after they have added the tiles of the next one: by then all states are there, and
/// no warp waits.
template <int D, int Warps>
class SplitStates {
 public:
  /// barrier: of all warps, which waits for `Warps` arrivals.
  PAGODA_DEVICE SplitStates(char* memory, const FixedLayout& layout, int group_size, std::uint32_t barrier)
      : values_(reinterpret_cast<float*>(memory + layout.values)),
        states_(reinterpret_cast<float2*>(memory + layout.states)),
        sums_(reinterpret_cast<QuadSums*>(memory + layout.sums)),
        warp_values_(group_size * value_stride<D>),
        barrier_(barrier) {}

  /// Stores the warp's state of a split, and merges the split before.
  PAGODA_DEVICE void add(const FixedSplitArgs& args, auto& rows, const SplitOf& split, int warp, int lane) {
    merge_last(args);
    const int mine = buffer(count_) + warp;
    rows.store(states_ + mine * 8, values_ + mine * warp_values_, value_stride<D>, args.group_size);
    __syncwarp();
    if (lane == 0) barrier_arrive(barrier_);
    last_ = split;
    ++count_;
  }
  /// Merges the split that was stored last.
  PAGODA_DEVICE void merge_last(const FixedSplitArgs& args) {
    if (merged_ == count_) return;
    barrier_wait(barrier_, merged_ & 1);
    const int from = buffer(merged_), num_quads = args.group_size * quads_per_row<D>;
    const int split = last_.split & ((1 << fixed_run_shift) - 1), run = last_.split >> fixed_run_shift;
    const bool ends_run = last_.last || split == (1 << fixed_run_shift) - 1;
    for (int i = threadIdx.x; i < num_quads; i += Warps * 32) {
      const QuadState x = merge_warps<D, Warps>(args.group_size, i, values_ + from * warp_values_, states_ + from * 8);
      if (!last_.alone) {
        publish(fixed_place(args, last_.slot, num_quads, i), x);
        continue;
      }
      QuadSums& sums      = sums_[i];  // of this thread
      const QuadState all = add_next(sums.get(0), x, split == 0);
      if (!ends_run) {
        sums.set(0, all);
        continue;
      }
      const QuadState sum = add_next(sums.get(1), all, run == 0);
      if (last_.last)
        store_output(args, last_.batch, last_.head, i / quads_per_row<D>, i % quads_per_row<D>, sum);
      else
        sums.set(1, sum);
    }
    ++merged_;
  }

 private:
  /// There is memory for two splits. When a warp stores a split, all warps have merged the one two splits before.
  PAGODA_DEVICE static int buffer(int split) { return (split & 1) * Warps; }

  float* values_;
  float2* states_;
  QuadSums* sums_;   ///< of a batch head that the block has alone
  int warp_values_;  ///< floats of a warp's state
  std::uint32_t barrier_;
  int count_ = 0, merged_ = 0;  ///< splits
  SplitOf last_;                ///< the split that was stored last
};

}  // namespace pagoda::tuned::warp
