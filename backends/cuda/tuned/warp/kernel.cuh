// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/warp/join.cuh"
#include "backends/cuda/tuned/warp/producer.cuh"
#include "backends/cuda/tuned/warp/rows.cuh"
#include "backends/cuda/tuned/warp/scaled_copies.cuh"
#include "backends/cuda/tuned/warp/scores.cuh"
#include "backends/cuda/tuned/warp/tiles.cuh"
#include "backends/cuda/tuned/warp/tuning.hpp"

namespace pagoda::tuned::warp {

template <int D>
inline constexpr int quads_per_row = D / 4;
template <int D>
inline constexpr int value_stride = D + 4;

template <int Warps>
PAGODA_DEVICE void sync_warps() {
  Warps == 1 ? __syncwarp() : __syncthreads();
}

template <class Args, class Rows>
PAGODA_DEVICE void load_queries(const Args& args, const Segment& s, Rows& rows) {
  const EntryView entry = entry_of(args, s.batch);
  if (entry.queries == 0) return rows.reset();
  rows.begin(static_cast<const typename Rows::Query*>(args.q.data) + entry.query_begin * args.q.token +
                 s.head * args.group_size * args.q.head,
             args.q.head, args.group_size);
}

/// Adds the tiles of a segment, and starts to copy a further one whenever a stage is free.
template <class Args, class Rows, class Producer, class Copies, class Ring>
PAGODA_DEVICE void add_tiles(const Args& args, const Segment& s, int end, std::uint32_t ring, Rows& rows,
                             Producer& producer, Copies& copies, Ring& issued, Ring& used, int lane) {
  using TileShape   = typename Rows::TileShape;
  const auto scores = HeadScores<Copies::size.heads, Args, Segment>::of(args, s, rows.row_of_scores());
  for (int tile = s.first_tile; tile < end; tile += s.tile_step) {
    copies.wait(used);
    const std::uint32_t keys = ring + used.slot * 2 * Copies::size.rows;
    if constexpr (TileShape::integers) {
      rows.add_tiles(keys, copies.scales_of(used.slot), scores, tile);
    } else {
      rows.template add_tile<Copies>(keys, keys + TileShape::bytes, scores.heads[0].of_tile(tile));
    }
    __syncwarp();  // all lanes have read the stage
    used.next();
    producer.copy_next_tile(args, copies, issued, lane);
  }
}

/// Where a block publishes its partial result of a segment.
PAGODA_DEVICE QuadPartial* partials_of(const Args& args, const Segment& s, int num_quads) {
  return partials_of(args, blockIdx.x, s.has_first_tile, num_quads);
}

/// Merges the states of an output quad that the warps of a block left in shared memory.
template <int D, int Warps>
PAGODA_DEVICE QuadState merge_warps(int group_size, int index, const float* values, const float2* states) {
  const int r = index / quads_per_row<D>, quad = index % quads_per_row<D>;
  float4 v[Warps];
  float2 state[Warps];
#pragma unroll
  for (int w = 0; w < Warps; ++w) {
    state[w] = states[w * 8 + r];
    v[w]     = *reinterpret_cast<const float4*>(values + (w * group_size + r) * value_stride<D> + 4 * quad);
  }
  QuadState x;
  x.add(v, state);
  return x;
}

/// Stores the outputs of sequences without tokens, which are in no block's share of a stream.
template <int D, int Warps, class Args>
PAGODA_DEVICE void store_empty_sequences(const Args& args, int num_quads) {
  for (int i = blockIdx.x; i < args.batch * args.num_kv_heads.value; i += gridDim.x) {
    const int batch = args.num_kv_heads.divide(i);
    if (entry_of(args, batch).tokens > 0) continue;
    for (int quad = threadIdx.x; quad < num_quads; quad += Warps * 32)
      store_output(args, batch, i - batch * args.num_kv_heads.value, quad / quads_per_row<D>, quad % quads_per_row<D>,
                   QuadState{});
  }
}

/// Decode attention in one launch, as one warp of a block sees it. Every warp has a ring of stages of its own, each a
/// tile of keys and one of values, and waits only for its copies. A stage is filled again as soon as it has been used,
/// across segments. The warps of a block meet at the end of each segment, the blocks of a batch head at the kernel's
/// end.
template <Type T, int D, int QueryRows, class Copies, int Warps, int Stages, class Args>
PAGODA_DEVICE void decode_block(const Args& args) {
  using TileShape = Tile<T, D>;
  using Walk      = SegmentWalk<Warps, tile_tokens, stream_price_tiles(Copies::size)>;
  using Rows      = RowsOf<T, D, QueryRows, Copies::size.heads>;
  extern __shared__ __align__(1024) char memory[];
  const SharedLayout layout = shared_layout(Copies::size, D, args.group_size, Warps, Stages);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const std::uint32_t ring = shared_address(memory) + warp * ring_bytes(Copies::size, Stages);
  float* const values      = reinterpret_cast<float*>(memory + layout.values);
  float2* const states     = reinterpret_cast<float2*>(memory + layout.states);

  // The first segment, on the assumption that the batch is even.
  TileProducer<Walk, Stages, Copies::small_pages> producer(Walk::equal_splits(args, warp));
  bool stream_k = args.stream_k;
  if (!stream_k) [[likely]]
    producer.next_segment(args, lane);

  // The consumer begins at the producer's position. It requests the queries while lengths and page ids are being
  // loaded: requested after the first copies, they would wait for all of these.
  auto walk = producer.walk;
  Segment s = producer.segment;
  bool any  = producer.more;
  Rows rows(lane);
  // The previous kernel has not been waited for yet.
  bool programmatic = Copies::may_be_programmatic && args.programmatic;
  if (any && !programmatic) load_queries(args, s, rows);
  Copies::prefetch(args);
  const SequenceLengths<decltype(load_length(args, lane))> lengths(args, lane);
  Copies copies(args, ring, shared_address(memory + layout.barriers) + warp * 8 * Stages, lane);
  Ring<Stages> issued, used;
  if (!stream_k) producer.skip_empty_segments(args, lane);

  // Fills the ring. The lengths arrive soon after the first stage has been asked for, and are looked at then. If the
  // batch turns out to be uneven, this stage is discarded, and the ring is filled with tiles of the stream.
  static_assert(Stages > 1);
  bool any_empty = false;
#pragma unroll 1
  for (bool restart = stream_k;; restart = true) {
    if (restart) [[unlikely]] {
      const BatchTotals totals = lengths.count<tile_tokens>(args, lane);
      any_empty                = totals.sequences < args.batch;
      walk = producer.walk = Walk::stream_k(args, warp, lane, totals);
      producer.next_segment(args, lane);
      producer.skip_empty_segments(args, lane);
      any = walk.next(args, s);
      if (any && !programmatic) load_queries(args, s, rows);
      copies.drain(used, issued);
    }
    bool is_uneven = false;
#pragma unroll 1
    for (int i = 0; i < Stages || programmatic;) {
      // A programmatic launch waits for the previous kernel before it copies tokens that this one may write, or at the
      // latest after these copies.
      if (programmatic && (i == Stages || (producer.more && has_newest_16_tokens(producer.segment)))) [[unlikely]] {
        wait_for_previous_kernel();
        allow_next_kernel();  // after the wait: the next kernel may read what the previous one wrote
        programmatic = false;
        if (any) load_queries(args, s, rows);
        continue;
      }
      if (i == 1 && !stream_k && !args.single_sequence && !lengths.count<tile_tokens>(args, lane).even) {
        is_uneven = true;
        break;
      }
      producer.copy_next_tile(args, copies, issued, lane);
      ++i;
    }
    if (!is_uneven) break;
    stream_k = true;
  }

  const int num_quads = args.group_size * quads_per_row<D>;
  PendingJoin begun = no_pending_join, continued = no_pending_join;
  bool again = false;
  while (any) {
    const int end  = s.end_tile();
    const int last = stream_k ? s.last_block : s.last_fixed_split(end);
    if (blockIdx.x > last) break;
    const bool whole = s.first_block >= last;
    if constexpr (TileShape::integers) rows.convert_queries();
    add_tiles(args, s, end, ring, rows, producer, copies, issued, used, lane);
    if (again) sync_warps<Warps>();  // all warps have read the states of the segment before
    rows.store(states + warp * 8, values + warp * args.group_size * value_stride<D>, value_stride<D>, args.group_size);
    QuadPartial* const to = whole ? nullptr : partials_of(args, s, num_quads);
    if (!whole) (s.has_first_tile ? begun : continued) = {s.batch, s.head, s.first_block, last};
    const int batch = s.batch, head = s.head;
    any = walk.next(args, s);
    if (any) load_queries(args, s, rows);  // they arrive while the warps merge
    sync_warps<Warps>();
    for (int i = threadIdx.x; i < num_quads; i += Warps * 32) {
      const QuadState x = merge_warps<D, Warps>(args.group_size, i, values, states);
      if (whole)
        store_output(args, batch, head, i / quads_per_row<D>, i % quads_per_row<D>, x);
      else
        publish(place_of(to + i), x);
    }
    again = true;
  }

  // All of the block's own partial results have been published before it waits for others'.
  if (continued.any()) join_slice<Warps>(args, continued, num_quads, quads_per_row<D>, warp, lane);
  if (begun.any()) join_slice<Warps>(args, begun, num_quads, quads_per_row<D>, warp, lane);
  if (any_empty) store_empty_sequences<D, Warps>(args, num_quads);
}

/// An architecture that lacks what a kernel needs gets no code for it, and the host never launches it there (Device,
/// why_not). Args: Args, or OptionArgs for the instance with score options.
template <Type T, int D, int QueryRows, class Copies, int Warps, int Stages, class Args>
__global__ void __launch_bounds__(Warps * 32, warps_per_sm / Warps) decode_kernel(const __grid_constant__ Args args) {
#if defined(__CUDA_ARCH__)
  if constexpr (__CUDA_ARCH__ >= (Copies::uses_maps ? 900 : Tile<T, D>::min_arch))
    decode_block<T, D, QueryRows, Copies, Warps, Stages>(args);
  else
    __trap();
#endif
}

}  // namespace pagoda::tuned::warp
