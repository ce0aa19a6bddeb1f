// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/warp/fixed_walk.cuh"
#include "backends/cuda/tuned/warp/kernel.cuh"

/// The kernel of fixed splits (pagoda::Exactness). A batch head is split after every 2^split_shift tiles from its first
/// token on, each split gives a partial result of its own, and these are joined in a fixed order. So the bits of its
/// results follow from its length and its data. Which block carries out a split changes nothing.
namespace pagoda::tuned::warp {

/// A batch head of several splits, of which a block joins a slice.
struct FixedJoin {
  int batch, head;
  int first_split, end_split;  ///< splits that the block carried out; its slice is in proportion
  int num_splits;              ///< 0: nothing to join
  int first_slot;
};

/// Joins a slice of the output quads, lanes over splits.
template <int Warps>
PAGODA_DEVICE void join_fixed(const FixedSplitArgs& a, const FixedJoin& join, int num_quads, int quads_per_row,
                              int warp, int lane) {
  const int n     = join.num_splits;
  const int begin = static_cast<int>(std::int64_t(join.first_split) * num_quads / n);
  const int end   = static_cast<int>(std::int64_t(join.end_split) * num_quads / n);
  const int log = n >= 32 ? 5 : 32 - __clz(n - 1), lanes = 1 << log;
  const int quads_at_once = 32 >> log, first_split = lane & (lanes - 1), which = lane >> log;
  for (int first = begin + warp * quads_at_once; first < end; first += Warps * quads_at_once) {
    const int i = first + which;
    QuadState x;
    if (i < end) {
      QuadPartial* const from = a.partials + static_cast<std::int64_t>(join.first_slot) * num_quads + i;
      n <= 32 ? join_quad<1>(from, num_quads, 0, first_split, n, lanes, x)
              : join_quad<3>(from, num_quads, 0, first_split, n, lanes, x);
    }
    __syncwarp();
    x.add_lanes(lanes);
    if (i < end && first_split == 0) store_output(a, join.batch, join.head, i / quads_per_row, i % quads_per_row, x);
  }
}

/// Where the partial result of a segment's first split goes.
PAGODA_DEVICE QuadPartial* partials_of(const FixedSplitArgs& a, const FixedSegment& s, int num_quads) {
  return a.partials + static_cast<std::int64_t>(s.first_slot + s.first_split) * num_quads;
}

/// One warp of a block. Each warp has a ring of stages, as in decode_block; copies run on across splits and segments.
template <Type T, int D, int QueryRows, class Copies, int Warps, int Stages>
PAGODA_DEVICE void decode_fixed_splits(const FixedSplitArgs& args) {
  using TileShape = Tile<T, D>;
  using Walk      = FixedSplitWalk<Warps>;
  extern __shared__ __align__(1024) char memory[];
  const SharedLayout layout = shared_layout(TileShape::size, D, args.group_size, Warps, Stages);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const std::uint32_t ring = shared_address(memory) + warp * ring_bytes(TileShape::size, Stages);
  float* const values      = reinterpret_cast<float*>(memory + layout.values);
  float2* const states     = reinterpret_cast<float2*>(memory + layout.states);

  const SequenceLengths lengths(args, lane);
  Copies::prefetch(args);
  Copies copies(args, ring, shared_address(memory + layout.barriers) + warp * 8 * Stages, lane);
  Walk walk(args, warp, lane, lengths.count<tile_tokens>(args, lane).tiles);
  TileProducer<Walk, Stages> producer(walk);
  producer.next_segment(args, lane);
  producer.skip_empty_segments(args, lane);
  RowsOf<T, D, QueryRows> rows(lane);
  FixedSegment s;
  bool any = walk.next(args, s);
  if (any) load_queries(args, s, rows);
  Ring<Stages> issued, used;
#pragma unroll 1
  for (int i = 0; i < Stages; ++i) producer.copy_next_tile(args, copies, issued, lane);

  const int num_quads = args.group_size * quads_per_row<D>;
  constexpr FixedJoin none{0, 0, 0, 0, 0, 0};
  // Batch heads that the block shares with others: at most the first and the last of its batch heads.
  FixedJoin begun = none, continued = none;
  bool again = false;
#pragma unroll 1
  for (;;) {
    FixedJoin join = none;
    if (any) {
      if constexpr (TileShape::integers) rows.convert_queries();
#pragma unroll 1
      for (int split = s.first_split; split < s.end_split; ++split) {
        if (split > s.first_split) rows.reset();
        FixedSegment part = s;  // the split alone
        part.first_split = split, part.first_tile = (split << walk.shift()) + warp;
        add_tiles(args, part, min(s.end_tile(), (split + 1) << walk.shift()), ring, rows, producer, copies, issued,
                  used, lane);
        if (again) sync_warps<Warps>();  // all warps have read the states of the split before
        rows.store(states + warp * 8, values + warp * args.group_size * value_stride<D>, value_stride<D>,
                   args.group_size);
        sync_warps<Warps>();
        merge_warps<D, Warps>(args, part, s.num_splits == 1, num_quads, values, states);
        again = true;
      }
      if (s.num_splits > 1) {
        const FixedJoin now{s.batch, s.head, s.first_split, s.end_split, s.num_splits, s.first_slot};
        (s.end_split - s.first_split == s.num_splits ? join : s.first_split == 0 ? begun : continued) = now;
      }
      any = walk.next(args, s);
      if (any) load_queries(args, s, rows);
    } else {
      // All of the block's own partial results have been published before it waits for others'.
      join                                           = continued.num_splits > 0 ? continued : begun;
      (continued.num_splits > 0 ? continued : begun) = none;
      if (join.num_splits == 0) break;
    }
    // The only place where splits are joined, so that the compiler cannot join them in two ways.
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
