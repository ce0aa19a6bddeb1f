// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/common/seen_tokens.cuh"
#include "backends/cuda/tuned/warp/join.cuh"
#include "backends/cuda/tuned/warp/list_producer.cuh"
#include "backends/cuda/tuned/warp/product_mma.cuh"
#include "backends/cuda/tuned/warp/scores.cuh"

/// Decode attention for a list of entries with up to 8 query rows to a kv head. Each warp has a share of the list, and
/// carries it out alone: it copies tiles ahead, across segments, and multiplies them. So a short segment costs little
/// more than its tiles, and there is no barrier of the block.
namespace pagoda::tuned::warp {

/// A tile of a list (scores.cuh). All query rows of an entry see the same tokens.
struct ListTileScores {
  float scale;           ///< of products, to base 2
  std::uint32_t hidden;  ///< bit i: token i of the tile is hidden

  /// tokens_left: tokens of the entry from the tile's first on.
  PAGODA_DEVICE ListTileScores(const ListArgs& args, const SeenTokens& seen, int tokens_left, float scale_of_segment)
      : scale(scale_of_segment), hidden(0) {
    constexpr std::uint32_t all = (1u << tile_tokens) - 1;
    if (seen.newest > 0 || tokens_left < tile_tokens) [[unlikely]]
      hidden = ~static_cast<std::uint32_t>(seen.of_tile(args.masks, tokens_left)) & all;
  }
  PAGODA_DEVICE float of(float product, int) const { return product * scale; }
  PAGODA_DEVICE bool hides_any() const { return hidden != 0; }
  PAGODA_DEVICE bool hides(int token) const { return (hidden >> token & 1) != 0; }
  template <class TileShape, class Copies>
  PAGODA_DEVICE void clear(std::uint32_t tile, int lane) const {
    clear_rows_of<TileShape, Copies>(tile, hidden, lane);
  }
};

/// A finished query row: the factor of its outputs, and where they go.
struct FinishedOutput {
  float weight       = 0;
  std::int64_t first = 0;  ///< element of the output

  FinishedOutput() = default;
  /// Stores the log-sum-exp. row: row of the output. r: row of the entry. state: maximum and sum.
  PAGODA_DEVICE FinishedOutput(const ListArgs& args, const Outputs& to, int row, int kv_head, int r, float2 state,
                               bool store_lse = true) {
    const int head = kv_head * args.group_size + r - args.heads.divide(r) * args.group_size;
    const FinishedRow done(to, head, state.x, state.y);
    weight = done.weight;
    if (weight != 0 && args.v.scale) weight *= __ldg(args.v.scale + kv_head * args.v.scale_head);
    first = row * to.out.token + head * to.out.head;
    if (store_lse && to.lse) store_lse_at(to, row * to.lse_token + head * to.lse_head, done.row_max, done.row_sum);
  }
};

/// Carries out the share of a warp. Warps: of the block, which has the `memory`. Nothing is copied to that before.
template <Type T, int D, int Stages, int Warps>
PAGODA_DEVICE void carry_out_share(const ListArgs& args, const ListStart& start, char* memory, int warp, int lane) {
  using TileShape             = Tile<T, D>;
  constexpr ListLayout layout = list_layout(TileShape::bytes, D, Stages, Warps);
  constexpr int quads = D / 4, stride = D + 4, num_quads = list_partial_quads(D);
  using Producer         = ListProducer<TileShape, D, Stages>;
  const std::uint32_t at = shared_address(memory);
  const WarpMemory<D> own{memory + layout.queues + warp * queue_bytes(D), at + warp * Stages * 2 * TileShape::bytes,
                          at + layout.barriers + warp * 8 * Stages};
  Producer producer(args, start, own, lane);
  float* const values  = reinterpret_cast<float*>(memory + layout.values) + warp * max_list_rows * stride;
  float2* const states = reinterpret_cast<float2*>(memory + layout.states) + warp * max_list_rows;
  // The warps of an owner have places side by side.
  const auto partials = [&](int place, bool has_first_tile) {
    return args.partials + (2 * static_cast<std::int64_t>(place) + has_first_tile) * num_quads;
  };

  MmaAccumulator<T, D> rows(lane);
  static_assert(max_list_rows == 8);
  PendingJoin* const pending = reinterpret_cast<PendingJoin*>(memory + layout.pending) + 2 * warp;
  if (lane < 2) pending[lane] = no_pending_join;
  // The owner and the warp's place, for partial results and joins. They are kept in the padding of a row of values, as
  // registers are scarce.
  int* const kept = reinterpret_cast<int*>(values + D);
  if (lane == 0) kept[0] = start.owner, kept[1] = start.owner * start.heads_at_once + start.head;
  // The segment that is multiplied, and the next one of its tiles. shape: query rows, and flags; 0 before the first
  // one.
  constexpr int whole = 1 << 8, has_first_tile = 1 << 9, to_states = 1 << 10;
  int tile = 0, tiles = 0, tokens_left = 0, head = 0, shape = 0, result = 0;
  float scale = 1;
  SeenTokens seen;
  // One loop for segments and tiles, so that there is one copy of fill().
#pragma unroll 1
  for (;;) {
    producer.fill(args);
    if (tile < tiles) {
      const std::uint32_t keys = producer.wait_for_tile();
      rows.template add_tile<typename Producer::Copies>(
          keys, keys + TileShape::bytes, ListTileScores(args, seen, tokens_left - tile * tile_tokens, scale));
      __syncwarp();  // all lanes have read the tile
      producer.release_tile();
      ++tile;
      continue;
    }
    if (shape != 0) {
      const Outputs& to  = list_outputs(args, (shape & to_states) != 0);
      const int num_rows = shape & 255;
      rows.store(states, values, stride, num_rows);
      __syncwarp();
      FinishedOutput mine;  // of row `lane`
      if ((shape & whole) && lane < num_rows) mine = {args, to, result, head, lane, states[lane]};
#pragma unroll 1
      for (int first = 0; first < num_rows * quads; first += 32) {
        const int i = first + lane, r = i / quads, quad = i % quads;
        const float weight           = __shfl_sync(~0u, mine.weight, r);
        const std::int64_t output_at = __shfl_sync(~0u, mine.first, r);
        if (r >= num_rows) continue;
        const float4 v = *reinterpret_cast<const float4*>(values + r * stride + 4 * quad);
        if (shape & whole) {
          store_quad(to.out, output_at + 4 * quad, v, weight);
        } else {
          publish(place_of(partials(kept[1], (shape & has_first_tile) != 0) + i), {v, states[r].x, states[r].y});
        }
      }
      __syncwarp();  // the next states overwrite them
    }
    const QueuedSegment* const queued = producer.next(rows);
    if (!queued) break;
    const auto uniform    = [](int x) { return __shfl_sync(~0u, x, 0); };
    const int4* const raw = reinterpret_cast<const int4*>(queued);
    const int4 a = raw[0], b = raw[1], c = raw[2];
    head = uniform(a.y), tiles = uniform(a.z), tokens_left = a.w, tile = 0;
    shape = uniform(c.x | (b.y ? whole : 0) | (b.x ? has_first_tile : 0) | (c.y >= 0 ? to_states : 0));
    if (!(shape & whole) && lane == 0) pending[b.x != 0] = {a.x, a.y, b.z, b.w};
    seen   = {uniform(c.z), uniform(c.w)};
    result = queued->results[lane % max_list_rows] + max(c.y, 0);
    scale  = args.scale * (args.k.scale ? __ldg(args.k.scale + head * args.k.scale_head) : 1.0f);
    __syncwarp();  // all lanes have read the segment and its queries
  }

  // All of the warp's own partial results have been published before it waits for others'.
  __syncwarp();
  const int owner = kept[0], place_of_warp = kept[1], heads_at_once = start.heads_at_once;
#pragma unroll 1
  for (int place = 0; place < 2; ++place) {
    const PendingJoin join = pending[place];
    if (!join.any()) continue;
    const Entry e        = list_entry(args, join.batch);
    const Outputs& to    = list_outputs(args, e.state >= 0);
    const int num_splits = join.num_splits();
    const int all        = min(e.num_queries, args.q_tokens_bound) * args.group_size * quads;
    const int slice = (all + num_splits - 1) / num_splits, begin = (owner - join.first_block) * slice;
    join_quads<1>(begin, min(all, begin + slice), num_splits, 0, lane,
                  places_two_each(partials(place_of_warp + (join.first_block - owner) * heads_at_once, false),
                                  num_quads, 2 * heads_at_once * num_quads),
                  [&](int i, const QuadState& x) {
                    const int r     = i / quads;
                    const int token = list_query(args, e.query_begin + args.heads.divide(r)).token;
                    const FinishedOutput done(args, to, output_row(args, token, e.state), join.head, r,
                                              make_float2(x.row_max, x.row_sum), i % quads == 0);
                    store_quad(to.out, done.first + i % quads * 4, x.values, done.weight);
                  });
  }
}

template <Type T, int D, int Stages>
PAGODA_DEVICE void decode_list(const ListArgs& args) {
  constexpr int threads       = list_warps * 32;
  constexpr ListLayout layout = list_layout(Tile<T, D>::bytes, D, Stages, list_warps);
  constexpr int capacity      = (layout.states - layout.values) / 4 - start_memory(threads, list_warps);
  extern __shared__ __align__(1024) char memory[];
  const int lane = threadIdx.x & 31, warp = __shfl_sync(~0u, threadIdx.x >> 5, 0);
  TensorCopies<Tile<T, D>, Stages>::prefetch(args);
  const ListStart start =
      find_start<threads, capacity>(OneRole<ListWork>{list_warps, args.heads_at_once, min_share_units, {args.late}},
                                    args, reinterpret_cast<int*>(memory + layout.values), warp);
  carry_out_share<T, D, Stages, list_warps>(args, start, memory, warp, lane);
}

template <Type T, int D, int Stages>
__global__ void __launch_bounds__(list_warps * 32, 1) list_kernel(const __grid_constant__ ListArgs args) {
#if PAGODA_SM90
  decode_list<T, D, Stages>(args);
#else
  __trap();
#endif
}

}  // namespace pagoda::tuned::warp
