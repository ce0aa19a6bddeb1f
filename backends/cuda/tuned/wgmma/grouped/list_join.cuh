// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/wgmma/grouped/list_copies.cuh"

#include <utility>

/// Joins the splits of a list's batch heads. It is the last thing that a block does, often while others wait, so it is
/// written for latency: all that it needs of an entry is in shared memory, and a warp has several loads under way.
namespace pagoda::tuned::wgmma::grouped {

/// A lane's part of a run of 16 x 16 blocks with the same 16 rows, in a partial result (Block16, join.cuh).
struct BlockRun {
  static constexpr int blocks = blocks_of_join;
  static_assert(blocks * 8 == 32);  // lanes have one quad of states each
  float4 values[2 * blocks];
  float4 state;  ///< quad lane % 8 of the states of block lane / 8; those of all blocks are the same

  PAGODA_DEVICE static float4* state_of(float4* at, int lane) { return at + lane / 8 * block16_quads + 64 + lane % 8; }
  /// Of values[i], in float4s, from the lane's first.
  PAGODA_DEVICE static constexpr int offset_of(int i) { return i / 2 * block16_quads + i % 2 * 32; }
  /// Reads it from a partial result, which may not have been written yet.
  PAGODA_DEVICE void load(float4* at, int lane) {
    [&]<int... I>(std::integer_sequence<int, I...>) {
      ((values[I] = load_relaxed_gpu4<offset_of(I)>(at + lane)), ...);
    }(std::make_integer_sequence<int, 2 * blocks>());
    state = load_relaxed_gpu4(state_of(at, lane));
  }
  PAGODA_DEVICE bool all_written() const {
    bool all = is_written(state);
#pragma unroll
    for (int i = 0; i < 2 * blocks; ++i) all &= is_written(values[i]);
    return all;
  }
  PAGODA_DEVICE static void reset(float4* at, int lane) {
#pragma unroll
    for (int i = 0; i < 2 * blocks; ++i) store_sentinels(at + lane + offset_of(i));
    store_sentinels(state_of(at, lane));
  }
  /// Adds it to accumulators and their states, in the layout of the products.
  PAGODA_DEVICE void add_to(float (&o)[1][8 * blocks], float2 (&sum)[2], int lane) const {
    const auto of_rows   = [&](float x) { return __shfl_sync(~0u, x, lane / 4); };
    const float2 mine[2] = {{of_rows(state.x), of_rows(state.y)}, {of_rows(state.z), of_rows(state.w)}};
    float before[2], now[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float max = fmaxf(sum[r].x, mine[r].x);
      before[r] = exp2_fast(sum[r].x - max), now[r] = exp2_fast(mine[r].x - max);
      sum[r] = make_float2(max, sum[r].y * before[r] + mine[r].y * now[r]);
    }
#pragma unroll
    for (int i = 0; i < 2 * blocks; ++i) {
      const float z[4] = {values[i].x, values[i].y, values[i].z, values[i].w};
#pragma unroll
      for (int e = 0; e < 4; ++e) o[0][4 * i + e] = o[0][4 * i + e] * before[e / 2] + z[e] * now[e / 2];
    }
  }
};

/// Joins the block's slices of two batch heads, on all warps that multiply. Each warp has published its own partial
/// results before. It takes every `Warps`-th run of a slice.
template <int D, int Warps, int Rows>
PAGODA_DEVICE void join_list_heads(const ListArgs& args, const ListJoin<Rows>* joins) {
  constexpr int runs_per_16_rows = block16s_per_16_rows(D) / BlockRun::blocks;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
  for (int place = 0; place < 2; ++place) {
    const ListJoin<Rows>& join = joins[place];
#pragma unroll 1
    for (int run = join.begin + warp; run < join.end; run += Warps) {
      const auto at = [&](int split) {
        return block16_of_split<1>(args, join.first_block + split * join.block_step, split, run * BlockRun::blocks);
      };
      float o[1][8 * BlockRun::blocks] = {};
      float2 sum[2]                    = {{initial_max, 0}, {initial_max, 0}};
#pragma unroll 1
      for (int split = 0; split < join.num_splits; split += 2) {
        BlockRun x, next;
        const int last = min(split + 1, join.num_splits - 1);
        do x.load(at(split), lane), next.load(at(last), lane);
        while (__any_sync(~0u, !x.all_written() || !next.all_written()));
#pragma unroll 1
        for (int s = split; s <= last; ++s) {
          BlockRun::reset(at(s), lane);
          x.add_to(o, sum, lane);
          x = next;
        }
      }
      store_outputs<1, runs_per_16_rows>(list_outputs(args, (join.rows & Assignment::to_states) != 0),
                                         LoadedRows{join.outputs}, join.head, o, sum, run % runs_per_16_rows,
                                         run / runs_per_16_rows * 16 + lane / 4, join.rows & 0xffff, lane & 3);
    }
  }
}

}  // namespace pagoda::tuned::wgmma::grouped
