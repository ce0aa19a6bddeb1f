// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/common/partials.cuh"
#include "backends/cuda/tuned/wgmma/latent/copies.cuh"
#include "backends/cuda/tuned/wgmma/latent/row_tiles.cuh"
#include "backends/cuda/tuned/wgmma/output.cuh"
#include "backends/cuda/tuned/wgmma/softmax.cuh"
#include "backends/cuda/wgmma.cuh"

#include <type_traits>

namespace pagoda::tuned::wgmma::latent {

/// Computes scores and probabilities of every other tile, with one of two warpgroups. A lane has two rows, eight apart,
/// and two tokens of each eight. The two warpgroups share the running maximum, which they pass on from tile to tile;
/// each has its own sums. Tiles of a block are counted across segments; even tiles belong to warpgroup 0.
template <Type T, int BlocksPerHead, class Args>
class Scorer {
 public:
  /// group: the warpgroup, 0 or 1; warp: index in the warpgroup.
  PAGODA_DEVICE Scorer(const Args& args, SharedMemory shared, char* memory, int group, int warp, int lane)
      : args_(args),
        shared_(shared),
        memory_(memory),
        group_(group),
        warp_(warp),
        lane_(lane),
        row_(16 * warp + (lane >> 2)),
        column_(lane & 3),
        active_(16 * warp < block_rows<BlocksPerHead>(args.rows_bound)),
        copies_here_(warp == 0),
        cursor_(args, lane),
        copies_(warp, lane) {}

  PAGODA_DEVICE void run() {
    begin_segment();
    if (cursor_.resolve_lengths(args_, lane_)) begin_segment();
    for (; cursor_.valid; cursor_.next(args_), begin_segment()) {
      const int count = cursor_.tiles();
      if (count == 0) continue;
      if constexpr (!copies) prefetch_rows(i_, count);
      if (tiles_ == 0) {
        if (copies_here_) start_first_copies(count);
        shared_.begin(args_.pairs);
      }
      max_[0] = max_[1] = initial_max, sum_[0] = sum_[1] = 0;
      if (i_ >= count) {  // the other warpgroup has the only tile
        copy_queries();
        shared_.wait(Barriers::q_full, segments_);
        shared_.arrive(Barriers::q_empty, lane_);
      }
      for (; i_ < count; i_ += 2) add_tile(count);
      finish_segment();
      tiles_ += count, ++segments_;
    }
    if (tiles_ == 0) shared_.begin(args_.pairs);
    if ((tiles_ & 1) == group_) {
      if (tiles_ > 0) wait_for_last_probabilities(tiles_);
      if (lane_ == 0) *flags() = no_more_tiles;
      shared_.arrive(Barriers::p_full, lane_);
    }
    if (args_.pairs) cluster_wait();
  }

 private:
  static constexpr bool Bf16    = is_bf16<T>;
  static constexpr bool copies  = copies_tiles<T, Args>;
  static constexpr int adjacent = Args::small_pages ? 1 : copy_tokens;  ///< tokens that lie in a page together
  using Rows                    = std::conditional_t<T == Type::fp8_ds_mla, ScaledRowTiles<BlocksPerHead, adjacent>,
                                                     PlainRowTiles<T, BlocksPerHead>>;
  using Copies                  = std::conditional_t<copies, TileCopies<BlocksPerHead>, Rows>;

  PAGODA_DEVICE float* running_max() const { return reinterpret_cast<float*>(memory_ + SharedLayout::running_max); }
  PAGODA_DEVICE float* corrections() const { return reinterpret_cast<float*>(memory_ + SharedLayout::corrections); }
  PAGODA_DEVICE int* flags() const { return reinterpret_cast<int*>(memory_ + SharedLayout::flags) + warp_; }
  PAGODA_DEVICE FinishedSegment* finished() const {
    return reinterpret_cast<FinishedSegment*>(memory_ + SharedLayout::finished);
  }
  PAGODA_DEVICE std::uint32_t tile_address() const {
    return shared_.address + SharedLayout::tiles + group_ * tile_bytes;
  }
  /// Whether the lane stores the values that are the same for a whole row.
  PAGODA_DEVICE bool stores_row() const { return column_ == 0; }
  /// Waits until the probabilities of the tile before tile n have been used.
  PAGODA_DEVICE void wait_for_last_probabilities(int n) const {
    shared_.wait(Barriers::p_empty + (group_ ^ 1), (n - 1) / 2);
  }

  PAGODA_DEVICE void begin_segment() {
    i_                      = (group_ - tiles_) & 1;
    const bool brings_tiles = copies_here_ || !copies;
    if (brings_tiles && cursor_.valid)
      copies_.begin(args_, cursor_.segment, cursor_.segment.first_tile + i_ * cursor_.segment.tile_step);
  }

  /// Starts the block's first copies before its warps have met, and so before the other barriers are set up. count:
  /// tiles of the first segment that has any.
  PAGODA_DEVICE void start_first_copies(int count) {
    if (lane_ == 0) {
      if constexpr (copies) barrier_init(shared_.barrier(Barriers::full + group_));
      if (group_ == 0) barrier_init(shared_.barrier(Barriers::q_full));
      fence_barrier_init();
    }
    __syncwarp();
    if constexpr (copies)
      if (i_ < count) copy_tile(0);
    if (group_ == 0) copies_.copy_queries(args_, cursor_.segment, shared_);
  }
  /// Brings the rows of the i-th of the segment's tiles, which the warpgroup makes next, to the second-level cache.
  PAGODA_DEVICE void prefetch_rows(int i, int count) const {
    if (i < count) copies_.prefetch(args_, cursor_.segment, cursor_.segment.first_tile + i * cursor_.segment.tile_step);
  }
  /// Makes the warpgroup's next tile of rows, as the round-th of its slot.
  PAGODA_DEVICE void make_tile(int round) {
    const Segment& s = cursor_.segment;
    const int tile   = s.first_tile + i_ * s.tile_step;
    copies_.make_tile(args_, s, shared_, group_, round, tile, tile + 2 * s.tile_step);
  }
  /// Whether start_first_copies has started those of the warpgroup's next tile and of the queries.
  PAGODA_DEVICE bool copied() const { return tiles_ == 0 && i_ < stages; }
  /// Copies the warpgroup's next tile, as the round-th of its slot.
  PAGODA_DEVICE void copy_tile(int round) {
    const Segment& s = cursor_.segment;
    const int tile   = s.first_tile + i_ * s.tile_step;
    copies_.copy_tile(args_, s, shared_, group_, round, tile, tile + 2 * s.tile_step);
  }
  PAGODA_DEVICE void copy_queries() const {
    if (!copies_here_ || group_ != 0 || copied()) return;
    if (segments_ > 0) shared_.wait(Barriers::q_empty, segments_ - 1);
    copies_.copy_queries(args_, cursor_.segment, shared_);
  }

  /// Adds the warpgroup's next tile, the i_-th of the segment's `count`.
  PAGODA_DEVICE void add_tile(int count) {
    const Segment& s = cursor_.segment;
    const int n = tiles_ + i_, tokens_left = s.len - (s.first_tile + i_ * s.tile_step) * tile_tokens;
    float x[32];
    if constexpr (copies) {
      if (copies_here_ && !copied()) copy_tile(n / stages);
    } else {
      if (i_ < 2) copy_queries();
      make_tile(n / stages);
    }
    if (i_ < 2) {
      if constexpr (copies) copy_queries();
      shared_.wait(Barriers::q_full, segments_);
    }
    shared_.wait(Barriers::full + group_, n / stages);
    const std::uint64_t q = opaque(matrix_descriptor(shared_.address + SharedLayout::q, bytes_of_8));
    const std::uint64_t k = opaque(matrix_descriptor(tile_address(), bytes_of_8));
    start_scores<Bf16, head_dim>(x, q, k);
    if constexpr (!copies) prefetch_rows(i_ + 2, count);
    wgmma_wait<0>();
    wgmma_fence_registers(x);
    if (i_ + 2 >= count) shared_.arrive(Barriers::q_empty, lane_);

    bool raised = false;
    std::uint32_t p[16];
    if (n > 0) shared_.wait(Barriers::max_ready + (group_ ^ 1), (n - 1) / 2);
    float before[2] = {initial_max, initial_max};
    if (active_) {
      mask_hidden(args_, x, s.batch, tokens_left, first_row<BlocksPerHead>() + row_, column_);
      raised = update_max(x, before);
    }
    shared_.arrive(Barriers::max_ready + group_, lane_);
    if (active_) exponentiate<Bf16>(x, args_.scale, max_, sum_, p);

    if (n > 0) wait_for_last_probabilities(n);
    if (lane_ == 0)
      *flags() = (raised && i_ > 0 ? max_raised : 0) | (i_ == 0 ? first_of_segment : 0) |
                 (i_ + 1 == count ? last_of_segment | (exchanges() ? last_of_pair : 0) : 0);
    if (active_) {
      if (raised && i_ > 0 && stores_row()) {
        corrections()[row_]     = exp2_fast(before[0] - max_[0]);
        corrections()[row_ + 8] = exp2_fast(before[1] - max_[1]);
      }
      store_probabilities(p);
    }
    clear_unseen_values(tokens_left, n);
    fence_async_proxy();
    shared_.arrive(Barriers::p_full, lane_);
  }

  /// Whether the block and the other one of its cluster exchange results of the segment. Blocks without query rows must
  /// not: none of their warps would wait for the other block, which might have ended before they reach it.
  PAGODA_DEVICE bool exchanges() const {
    return cursor_.paired(args_) && block_rows<BlocksPerHead>(args_.rows_bound) > 0;
  }

  /// Raises the running maximum to that of the tile's scores x if needed. before: the maximum after the previous tile.
  /// Returns whether the maximum of a row was raised.
  PAGODA_DEVICE bool update_max(const float (&x)[32], float (&before)[2]) {
    float largest[2];
    lane_max(x, args_.scale, largest);
    if (i_ > 0) before[0] = running_max()[row_], before[1] = running_max()[row_ + 8];
    float now[2] = {before[0], before[1]};
    const bool raised =
        __any_sync(~0u, largest[0] > before[0] + rescale_threshold || largest[1] > before[1] + rescale_threshold);
    if (raised) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        now[r] = fmaxf(before[r], row_max(largest[r]));
        if (stores_row()) running_max()[row_ + 8 * r] = now[r];
      }
    } else if (i_ == 0 && stores_row()) {
      running_max()[row_] = running_max()[row_ + 8] = initial_max;
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) sum_[r] *= exp2_fast(max_[r] - now[r]), max_[r] = now[r];
    return raised;
  }

  /// Stores rows of 128 bytes with swizzled 16-byte chunks.
  PAGODA_DEVICE void store_probabilities(const std::uint32_t (&p)[16]) const {
    const int row   = 16 * warp_ + (lane_ & 15);
    const int first = opaque(SharedLayout::probabilities + row * 128 + ((lane_ >> 4 ^ row & 7) << 4));
#pragma unroll
    for (int j = 0; j < 8; j += 2) store_matrices(shared_.address + (first ^ j << 4), p + 2 * j);
  }

  /// Zeroes the values of the tile that would turn products with probabilities of 0 into NaN: those behind the last
  /// token, and infinities and NaNs of tokens that some row does not see. (A row that sees a NaN already has a NaN
  /// score, because values are the first dims of keys.)
  PAGODA_DEVICE void clear_unseen_values(int tokens_left, int n) const {
    const int thread = 32 * warp_ + lane_;
    if (tokens_left < tile_tokens) clear_values<head_dim, head_dim_v, 128>(tile_address(), tokens_left, thread);
    if (args_.hidden_bound > 0 && tokens_left < tile_tokens + args_.hidden_bound) {
      // By then all four warps have their scores, so none reads the tile as keys.
      shared_.wait(Barriers::max_ready + group_, n / 2);
      const int hidden = hidden_tokens(args_, cursor_.segment.batch);
      clear_non_finite<Bf16, head_dim, head_dim_v, 128>(tile_address(), max(tokens_left - hidden, 0),
                                                        min(tokens_left, tile_tokens), thread);
    }
  }

  /// Passes the states of the segment's rows to the warpgroups that add values.
  PAGODA_DEVICE void finish_segment() {
    const Segment& s     = cursor_.segment;
    float2* const states = reinterpret_cast<float2*>(memory_ + SharedLayout::states) + group_ * tile_rows;
    sum_[0] = row_sum(sum_[0]), sum_[1] = row_sum(sum_[1]);
    if (segments_ > 0) shared_.wait(Barriers::states_empty, segments_ - 1);
    if (group_ == 0 && warp_ == 0 && lane_ == 0) {
      const bool paired = cursor_.paired(args_), whole = cursor_.whole() || (paired && args_.num_splits.value == 2);
      *finished() = {s.batch, s.head, s.has_first_tile, whole, paired};
      if (!whole)
        reinterpret_cast<PendingJoin*>(memory_ + SharedLayout::pending)[s.has_first_tile] = cursor_.pending_join();
    }
    if (stores_row()) {
      states[row_]     = make_float2(max_[0], sum_[0]);
      states[row_ + 8] = make_float2(max_[1], sum_[1]);
    }
    shared_.arrive(Barriers::states_full, lane_);
  }

  const Args& args_;
  const SharedMemory shared_;
  char* const memory_;
  const int group_, warp_, lane_, row_, column_;
  const bool active_, copies_here_;
  SegmentCursor<BlocksPerHead> cursor_;
  Copies copies_;
  int tiles_ = 0, segments_ = 0;  ///< the block's, before the current segment
  int i_ = 0;                     ///< the warpgroup's next tile, counted in the segment
  float max_[2], sum_[2];         ///< running maxima that the sums are relative to
};

template <Type T, int BlocksPerHead, class Args>
PAGODA_DEVICE void score_tiles(const Args& args, SharedMemory shared, char* memory, int group, int warp, int lane) {
  if (group == 0 && warp == 0 && lane < 2)
    reinterpret_cast<PendingJoin*>(memory + SharedLayout::pending)[lane] = no_pending_join;
  Scorer<T, BlocksPerHead, Args>(args, shared, memory, group, warp, lane).run();
}

}  // namespace pagoda::tuned::wgmma::latent
