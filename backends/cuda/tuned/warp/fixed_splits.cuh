// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/warp/fixed_states.cuh"
#include "backends/cuda/tuned/warp/fixed_walk.cuh"
#include "backends/cuda/tuned/warp/kernel.cuh"

/// The kernel of fixed splits (pagoda::Exactness). A batch head is divided into splits of 2^shift tiles
/// (fixed_split_shift), from its first token on, and 2^fixed_run_shift splits are a run. The states of the warps are
/// added to that of a split, those of a run's splits one after another, and then those of the runs. So the bits of its
/// results follow from its length and its data. Which blocks carry out the splits changes nothing: the splits of a
/// batch head that one block has alone are added in shared memory, others through device memory, in the same order and
/// by the same operations (QuadState).
namespace pagoda::tuned::warp {

/// One warp of a block. Each warp has a ring of stages, as in decode_block; copies run on across splits and segments.
template <Type T, int D, int QueryRows, class Copies, int Warps, int Stages>
PAGODA_DEVICE void decode_fixed_splits(const FixedSplitArgs& args) {
  using TileShape = Tile<T, D>;
  using Walk      = FixedSplitWalk<Warps>;
  extern __shared__ __align__(1024) char memory[];
  const FixedLayout layout = fixed_layout(TileShape::bytes, D, args.group_size, Warps, Stages);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const std::uint32_t ring     = shared_address(memory) + warp * Stages * 2 * TileShape::bytes;
  const std::uint32_t barriers = shared_address(memory + layout.barriers), of_splits = barriers + Warps * 8 * Stages;
  SplitStates<D, Warps> states(memory, layout, args.group_size, of_splits);
  if (threadIdx.x == 0) barrier_init(of_splits, Warps);

  const SequenceLengths<> lengths(args, lane);
  Copies::prefetch(args);
  Copies copies(args, ring, barriers + warp * 8 * Stages, lane);
  Walk walk(args, warp, lane, lengths.count<tile_tokens>(args, lane));
  TileProducer<Walk, Stages, false> producer(walk);
  producer.next_segment(args, lane);
  producer.skip_empty_segments(args, lane);
  RowsOf<T, D, QueryRows> rows(lane);
  FixedSegment s;
  bool any = walk.next(args, s);
  if (any) load_queries(args, s, rows);
  Ring<Stages> issued, used;
#pragma unroll 1
  for (int i = 0; i < Stages; ++i) producer.copy_next_tile(args, copies, issued, lane);

  __syncthreads();  // the barrier of the splits is initialised

  const int num_quads = args.group_size * quads_per_row<D>;
  constexpr FixedJoin none{0, 0, 0, 0, 0, 0};
  // Batch heads that the block shares with others: at most the first and the last of its batch heads.
  FixedJoin begun = none, continued = none;
#pragma unroll 1
  while (any) {
    const bool alone = s.end_split - s.first_split == s.num_splits;
#pragma unroll 1
    for (int split = s.first_split; split < s.end_split; ++split) {
      if (split > s.first_split) rows.reset();
      FixedSegment part = s;  // the split alone
      part.first_tile   = (split << s.shift) + warp;
      add_tiles(args, part, min(s.end_tile(), (split + 1) << s.shift), ring, rows, producer, copies, issued, used,
                lane);
      states.add(args, rows, {s.batch, s.head, split, s.first_slot + split, split + 1 == s.num_splits, alone}, warp,
                 lane);
    }
    if (!alone)
      (s.first_split == 0 ? begun : continued) = {s.batch,     s.head,       s.first_split,
                                                  s.end_split, s.num_splits, s.first_slot};
    any = walk.next(args, s);
    if (any) load_queries(args, s, rows);
  }
  // All of the block's own partial results are published before it waits for others'.
  states.merge_last(args);
#pragma unroll 1
  for (int place = 0; place < 2; ++place) {
    const FixedJoin join = place == 0 ? continued : begun;
    if (join.num_splits > 0) join_fixed<Warps>(args, join, num_quads, quads_per_row<D>, warp, lane);
  }
  store_empty_sequences<D, Warps>(args, num_quads);
}

template <Type T, int D, int QueryRows, class Copies, int Warps, int Stages>
__global__ void __launch_bounds__(Warps * 32, warps_per_sm / Warps)
    fixed_split_kernel(const __grid_constant__ FixedSplitArgs args) {
#if defined(__CUDA_ARCH__)
  if constexpr (__CUDA_ARCH__ >= 900)
    decode_fixed_splits<T, D, QueryRows, Copies, Warps, Stages>(args);
  else
    __trap();
#endif
}

}  // namespace pagoda::tuned::warp
