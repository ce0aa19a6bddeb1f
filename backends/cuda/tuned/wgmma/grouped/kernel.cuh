// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/wgmma/grouped/copies.cuh"
#include "backends/cuda/tuned/wgmma/grouped/scores.cuh"
#include "backends/cuda/tuned/wgmma/join.cuh"
#include "backends/cuda/wgmma.cuh"

/// Decode attention for up to 128 query rows that share a kv head of 64 or 128 dims. More take several passes
/// (passes.hpp). One warp (small pages: four) copies tiles into a ring, and one warpgroup (two beyond 64 rows)
/// multiplies. Probabilities stay in registers (FlashAttention-3: Shah et al., 2024).
namespace pagoda::tuned::wgmma::grouped {

/// A warpgroup's query rows, over all segments of the block. A lane has two rows, eight apart, of scores and of
/// outputs, and two tokens or dims of each eight.
template <bool Bf16, int D, int Warpgroups, class Args>
class Multiplier {
 public:
  using Shared = SharedMemory<D, Warpgroups>;

  PAGODA_DEVICE Multiplier(const Args& args, Shared shared, char* memory, int warp, int lane)
      : args_(args),
        shared_(shared),
        pending_(reinterpret_cast<PendingJoin*>(memory + Shared::layout.pending)),
        cleared_(reinterpret_cast<int*>(memory + Shared::layout.cleared)),
        group_(warp / 4),
        row_(16 * warp + (lane >> 2)),
        lane_(lane),
        column_(lane & 3),
        active_(16 * warp < args.rows_bound) {}

  PAGODA_DEVICE void run(SegmentCursor<1>& cursor) {
    if (Warpgroups == 2 && group_ == 1) give_turn(0);
    for (bool again = false; cursor.valid; cursor.next(args_)) {
      const int count = cursor.tiles();
      if (count == 0) continue;
      if (again) sync_block<num_threads>();  // all have used the queries
      again = true;
      attend_segment(cursor, count);
    }
    if (Warpgroups == 2 && group_ == 0) wait_for_turn(0);  // the last turn that was given
  }

 private:
  static constexpr int num_threads = compute_threads(Warpgroups);
  static constexpr int bytes_of_8  = bytes_of_8_tokens(D);

  PAGODA_DEVICE void attend_segment(const SegmentCursor<1>& cursor, int count) {
    const Segment& s = cursor.segment;
    *cleared_        = 0;
    load_queries<D, Warpgroups>(args_, s, shared_.address);
    fence_async_proxy();
    sync_block<num_threads>();
    float max[2] = {initial_max, initial_max}, sum[2] = {0, 0}, o[1][D / 2];
    const SegmentScores<Args> scores(args_, s, row_);
    int rows = args_.rows_bound;
    if constexpr (Args::ragged) {
      rows    = num_rows(args_, entry_of(args_, s.batch));
      active_ = row_ - (lane_ >> 2) < rows;
    }
    if constexpr (Warpgroups == 1) {
      for (int i = 0; i < count; ++i) add_tile(scores, scores.tile(s.first_tile + i * s.tile_step), i, max, sum, o[0]);
    } else if (!Args::ragged || group_ * tile_rows < rows) {
      add_tiles_in_turns(scores, s, count, !Args::ragged || rows > tile_rows, max, sum, o[0]);
    } else {
      pass_tiles(scores, s, count);
    }

    if (scores.may_clear_non_finite() && *cleared_ != 0) [[unlikely]]
      scores.template add_non_finite<Bf16, D>(o[0], row_, column_);
    float2 state[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) state[r] = make_float2(max[r], row_sum(sum[r]));
    const bool whole = cursor.whole();
    if (!whole && threadIdx.x == 0) pending_[s.has_first_tile] = cursor.pending_join();
    if (active_) store_segment<1, 1>(args_, {s.batch, s.head, s.has_first_tile, whole}, o, state, 0, row_, lane_);
  }

  /// Starts the products of a tile's probabilities and values. add: to outputs of earlier tiles.
  PAGODA_DEVICE void start_values(float (&o)[D / 2], const std::uint32_t (&p)[16], int slot, bool add) const {
    const std::uint64_t v = matrix_descriptor(shared_.values(slot), bytes_of_8, run_bytes);
    wgmma_fence_registers(o);
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < tile_tokens / 16; ++j)
      wgmma_register_a<Bf16>(o, p + 4 * j, advance_descriptor(v, j * 2 * bytes_of_8), add || j > 0);
    wgmma_commit();
  }
  PAGODA_DEVICE void wait_for_tile(const Ring<Shared::num_stages>& at) const {
    barrier_wait(shared_.full(at.slot), at.parity);
    if constexpr (Args::small_pages) fence_async_proxy();  // the tile was written by threads
  }
  PAGODA_DEVICE void release_tile() {
    __syncwarp();
    if (lane_ == 0) barrier_arrive(shared_.empty(used_.slot));
    used_.next();
  }
  PAGODA_DEVICE static void rescale(float (&o)[D / 2], const float (&correction)[2]) {
#pragma unroll
    for (int e = 0; e < D / 2; ++e) o[e] *= correction[e >> 1 & 1];
  }

  /// Adds tile i of the segment to running maxima, sums and outputs. tile: see scores.cuh.
  PAGODA_DEVICE void add_tile(const SegmentScores<Args>& scores, int tile, int i, float (&max)[2], float (&sum)[2],
                              float (&o)[D / 2]) {
    const std::uint64_t q = matrix_descriptor(shared_.address, bytes_of_8);
    const std::uint64_t k = matrix_descriptor(shared_.keys(used_.slot), bytes_of_8);
    wait_for_tile(used_);
    float x[32];
    start_scores<Bf16, D>(x, q, k);
    if (scores.hides_any(tile)) clear_unseen_values(scores, tile, used_.slot);  // beside the products
    wgmma_wait<0>();
    wgmma_fence_registers(x);

    std::uint32_t p[16] = {};
    bool raised         = false;
    float correction[2] = {1, 1};
    if (active_) {
      scores.change(x, tile, row_, column_);
      raised = update_max(x, scores.scale(), max, sum, correction);
      exponentiate<Bf16>(x, scores.scale(), max, sum, p);
    }
    if (raised && i > 0) rescale(o, correction);
    start_values(o, p, used_.slot, i > 0);
    wgmma_wait<0>();
    wgmma_fence_registers(o);
    release_tile();
  }

  /// Adds all tiles of a segment. Two warpgroups take turns at the matrix units. In its turn a warpgroup starts two
  /// products: that with the keys of the next tile, and that with the values of the tile before. Then it computes the
  /// softmax of the next tile, while the matrix units work on its values and on the products of the other warpgroup
  /// (FlashAttention-3: Shah et al., 2024, sections 3.1 and 3.2). turns: the other warpgroup has rows, too.
  PAGODA_DEVICE void add_tiles_in_turns(const SegmentScores<Args>& scores, const Segment& s, int count, bool turns,
                                        float (&max)[2], float (&sum)[2], float (&o)[D / 2]) {
    // With queries in registers the products with keys read half as many bytes of shared memory.
    [[maybe_unused]] std::uint32_t q[D / 16][4];
    if constexpr (Args::in_passes) {
#pragma unroll
      for (int j = 0; j < D / 16; ++j)
        load_matrices<false>(
            q[j], shared_.address + swizzled_offset<D>(row_ - (lane_ >> 2) + lane_ % 16, 2 * j + lane_ / 16));
    }
    float x[32], correction[2];
    std::uint32_t p[16]            = {};
    Ring<Shared::num_stages> ahead = used_;  // of the keys
    const auto start_keys          = [&] {
      const std::uint64_t k = matrix_descriptor(shared_.keys(ahead.slot), bytes_of_8);
      if constexpr (Args::in_passes)
        start_scores<Bf16, D>(x, q, k);
      else
        start_scores<Bf16, D>(x, matrix_descriptor(shared_.address + group_ * (tile_rows / 8) * bytes_of_8, bytes_of_8),
                                       k);
    };
    const auto softmax = [&](int tile) {
      correction[0] = correction[1] = 1;
      if (!active_) return false;
      scores.change(x, tile, row_, column_);
      const bool raised = update_max(x, scores.scale(), max, sum, correction);
      exponentiate(x, scores.scale(), max, sum);
      return raised;
    };

    int tile = scores.tile(s.first_tile);
    wait_for_tile(ahead);
    if (scores.hides_any(tile)) clear_unseen_values(scores, tile, ahead.slot);
    if (turns) wait_for_turn(group_);
    start_keys();
    if (turns) give_turn(group_ ^ 1);
    wgmma_wait<0>();
    wgmma_fence_registers(x);
    softmax(tile);
    if (active_) pack_probabilities<Bf16>(x, p);
#pragma unroll 1
    for (int i = 1; i < count; ++i) {
      ahead.next();
      tile = scores.tile(s.first_tile + i * s.tile_step);
      wait_for_tile(ahead);
      if (scores.hides_any(tile)) clear_unseen_values(scores, tile, ahead.slot);
      if (turns) wait_for_turn(group_);
      start_keys();
      start_values(o, p, used_.slot, i > 1);
      if (turns) give_turn(group_ ^ 1);
      wgmma_wait<1>();
      wgmma_fence_registers(x);
      const bool raised = softmax(tile);
      wgmma_wait<0>();
      wgmma_fence_registers(o);
      release_tile();
      if (raised) rescale(o, correction);
      if (active_) pack_probabilities<Bf16>(x, p);
    }
    start_values(o, p, used_.slot, count > 1);
    wgmma_wait<0>();
    wgmma_fence_registers(o);
    release_tile();
  }
  /// Goes past the tiles of a segment of which the warpgroup has no rows.
  PAGODA_DEVICE void pass_tiles(const SegmentScores<Args>& scores, const Segment& s, int count) {
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      const int tile = scores.tile(s.first_tile + i * s.tile_step);
      wait_for_tile(used_);
      if (scores.hides_any(tile)) clear_unseen_values(scores, tile, used_.slot);
      release_tile();
    }
  }

  /// Zeroes the values that must not be multiplied. All multiplying threads of the block do so.
  PAGODA_DEVICE void clear_unseen_values(const SegmentScores<Args>& scores, int tile, int slot) const {
    const int thread = static_cast<int>(threadIdx.x);
    scores.template clear<Bf16, D, num_threads>(shared_.values(slot), tile, thread, cleared_);
    fence_async_proxy();
    if constexpr (Args::ragged)
      sync_block_from_anywhere<num_threads>();  // the compiler may make a copy for each warpgroup
    else
      sync_block<num_threads>();
  }

  /// Raises the running maxima to those of the tile's scores x if needed, and rescales the sums. correction: factor of
  /// the outputs. Returns whether the maximum of a row was raised.
  PAGODA_DEVICE bool update_max(const float (&x)[32], float scale, float (&max)[2], float (&sum)[2],
                                float (&correction)[2]) const {
    float largest[2];
    lane_max(x, scale, largest);
    const bool raised =
        __any_sync(~0u, largest[0] > max[0] + rescale_threshold || largest[1] > max[1] + rescale_threshold);
    if (raised) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float now = fmaxf(max[r], row_max(largest[r]));
        correction[r]   = exp2_fast(max[r] - now);
        max[r]          = now, sum[r] *= correction[r];
      }
    }
    return raised;
  }

  const Args& args_;
  const Shared shared_;
  PendingJoin* const pending_;
  /// Set if values were removed from a tile of the segment. It is stored by all threads, or by all lanes of a warp:
  /// after a store by some lanes the compiler keeps the ring's slot in a register of each lane and moves it for every
  /// product, which costs 6% at 128 query rows.
  volatile int* const cleared_;
  const int group_, row_, lane_, column_;
  bool active_;  ///< the warp has rows of the segment's entry
  Ring<Shared::num_stages> used_;
};

template <bool Bf16, int D, int Warpgroups, class Args>
PAGODA_DEVICE void decode_block(const Args& args) {
  using Shared = SharedMemory<D, Warpgroups>;
  extern __shared__ __align__(1024) char memory[];
  const int warp = __shfl_sync(~0u, threadIdx.x >> 5, 0), lane = threadIdx.x & 31;
  const Shared shared{shared_address(memory)};
  PendingJoin* const pending = reinterpret_cast<PendingJoin*>(memory + Shared::layout.pending);
  SegmentCursor<1> cursor(args, lane);
  if (warp == 0) {
    if (lane < Shared::num_stages)
      barrier_init(shared.full(lane), Args::small_pages ? copying_threads(Warpgroups, true) : 1),
          barrier_init(shared.empty(lane), 4 * Warpgroups);
    if (lane < 2) pending[lane] = no_pending_join;
    fence_barrier_init();
    if (lane == 0) prefetch_map(&args.k_map), prefetch_map(&args.v_map);
  }
  __syncthreads();
  cursor.resolve_lengths(args, lane);
  constexpr int compute_warps = compute_threads(Warpgroups) / 32;
  // With 64 dims all threads have enough.
  constexpr bool moves_registers = copying_threads(Warpgroups, Args::small_pages) == 128 && D == 128;
  if (warp >= compute_warps) {
    if constexpr (moves_registers) decrease_registers<copier_registers(Warpgroups, multiplier_registers(Warpgroups))>();
    if constexpr (Args::small_pages)
      return copy_tiles_by_lanes(args, cursor, shared, warp - compute_warps, lane);
    else if (warp == compute_warps)
      copy_tiles(args, cursor, shared, lane);
    return;
  }
  if constexpr (moves_registers) increase_registers<multiplier_registers(Warpgroups)>();
  Multiplier<Bf16, D, Warpgroups, Args>(args, shared, memory, warp, lane).run(cursor);
  finish<1, D, compute_threads(Warpgroups)>(args, pending, memory + Shared::layout.ring, warp, lane);
}

/// Args: wgmma::Args, RaggedArgs, PassArgs or SmallPageArgs, or OptionArgs of one of them.
template <bool Bf16, int D, int Warpgroups, class Args>
__global__ void __launch_bounds__(threads(Warpgroups, Args::small_pages), blocks_per_sm(Warpgroups))
    decode_kernel(const __grid_constant__ Args args) {
#if PAGODA_SM90A
  decode_block<Bf16, D, Warpgroups>(args);
#else
  __trap();
#endif
}

}  // namespace pagoda::tuned::wgmma::grouped
