// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/warp/fixed_args.hpp"
#include "backends/cuda/tuned/warp/join.cuh"
#include "backends/cuda/tuned/warp/tuning.hpp"

/// Fixed splits: partial results in device memory, and the order in which states are added (fixed_splits.cuh).
namespace pagoda::tuned::warp {

/// A batch head of several splits, of which a block joins a slice.
struct FixedJoin {
  int batch, head;
  int first_split, end_split;  ///< splits that the block carried out; its slice is in proportion
  int num_splits;              ///< 0: nothing to join
  int first_slot;
};

/// Where the partial result of a split lies.
PAGODA_DEVICE QuadPlace fixed_place(const FixedSplitArgs& a, int slot, int num_quads, int quad) {
  char* const at = a.slots + static_cast<std::int64_t>(slot) * num_quads * fixed_quad_bytes;
  return {reinterpret_cast<float4*>(at) + quad, reinterpret_cast<float2*>(at + 16 * num_quads) + quad};
}

/// The sum of states of an output quad, and a next one; the first one is the sum.
PAGODA_DEVICE QuadState add_next(QuadState sum, const QuadState& next, bool first) {
  if (first) return next;
  sum.add(next);
  return sum;
}

/// Joins a slice of the output quads, lanes over runs.
template <int Warps>
PAGODA_DEVICE void join_fixed(const FixedSplitArgs& a, const FixedJoin& join, int num_quads, int quads_per_row,
                              int warp, int lane) {
  constexpr int per_run = 1 << fixed_run_shift;
  const int n = join.num_splits, runs = (n + per_run - 1) >> fixed_run_shift;
  const int begin = static_cast<int>(std::int64_t(join.first_split) * num_quads / n);
  const int end   = static_cast<int>(std::int64_t(join.end_split) * num_quads / n);
  const int log = runs >= 32 ? 5 : 32 - __clz(runs - 1), lanes = runs == 1 ? 1 : 1 << log;
  const int mine = lane & (lanes - 1), group = lane - mine, quads_at_once = 32 / lanes;
#pragma unroll 1
  for (int first = begin + warp * quads_at_once; first < end; first += Warps * quads_at_once) {
    const int i = first + lane / lanes;
    QuadState sum;
#pragma unroll 1
    for (int run0 = 0; run0 < runs; run0 += lanes) {
      const int split0 = (run0 + mine) << fixed_run_shift;
      float4 v[per_run];
      float2 s[per_run];
      const auto place  = [&](int u) { return fixed_place(a, join.first_slot + split0 + u, num_quads, i); };
      const auto wanted = [&](int u) { return i < end && split0 + u < n; };
      take_partials<per_run>(place, wanted, v, s);
      QuadState run;
#pragma unroll
      for (int u = 0; u < per_run; ++u)
        if (wanted(u)) run = add_next(run, {v[u], s[u].x, s[u].y}, u == 0);
      __syncwarp();
#pragma unroll 1
      for (int r = 0; r < min(lanes, runs - run0); ++r) sum = add_next(sum, run.of_lane(group + r), run0 + r == 0);
    }
    if (i < end && mine == 0) store_output(a, join.batch, join.head, i / quads_per_row, i % quads_per_row, sum);
  }
}

}  // namespace pagoda::tuned::warp
