// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/mma_storage.hpp"
#include "backends/cuda/primitives.hpp"
#include "src/kernel/arithmetic.hpp"
#include "src/kernel/join.hpp"
#include "src/kernel/rows.hpp"
#include "src/kernel/unroll.hpp"

#include <pagoda/types.hpp>

#include <Kokkos_Core.hpp>

#include <cstddef>
#include <cstdint>

namespace pagoda::detail {

/// The fragment for mma.sync.m16n8k16 (sm_80 and newer): 8 query rows, 16 tokens a tile.
///
///  - Keys and values come by asynchronous copies into the worker's own part of scratch, a tile ahead: the next keys as
///    soon as the scores are out, the next values as soon as the output is. Nobody but the worker waits for them.
///  - In both products A, with its 16 rows, is what comes from the cache (keys as they lie, values transposed as they
///    are loaded), and the 8 query rows are the columns of B. A lane has scores of two tokens and two query rows, and
///    outputs of the same rows; one instruction makes probabilities the second product's operand.
///  - Where a query does not fit the cache's type, what its rounding left is multiplied too.
///  - The running maximum is raised only when a score exceeds it by more than 2^8; until then probabilities are up to
///    2^8 and nothing is rescaled.
///
/// Quantized caches become fp16 on their way into registers (mma_storage.hpp). Scales of tokens come beside
/// the keys; the weights of value rows are probabilities times scales, and it is them that the running maximum bounds.
///
/// DimTile: a power of two; head dims up to this many, with zeros beyond the actual ones. AnyQuery: queries of other
/// types than the cache's.
template <class T, int DimTile, bool AnyQuery = false>
class MmaFragment {
 public:
  template <bool All>
  using Instance                          = MmaFragment<T, DimTile, All>;
  using Acc                               = float;
  using Member                            = typename Kokkos::TeamPolicy<Kokkos::Cuda>::member_type;
  static constexpr bool all_only          = false;
  static constexpr bool foresees          = true;
  static constexpr bool any_query         = AnyQuery;
  static constexpr int rows               = 8;
  static constexpr int lane_rows          = 2;
  static constexpr int scratch_alignment  = 512;  ///< the longest row of a tile
  static constexpr int tile_tokens        = 16;
  using Storage                           = MmaStorage<T>;
  using Operand                           = typename Storage::Operand;
  static constexpr bool scaled            = is_quantized_v<T>;
  static constexpr DType probability_type = dtype_v<Operand>;
  static constexpr DType query_type       = dtype_v<Operand>;
  /// Of four warps, so that their scratch and registers fit: what is in flight on an SM hides the memory's latency.
  static constexpr int teams_per_sm = DimTile <= 64 ? 4 : DimTile <= 128 ? 3 : 2;

  static constexpr int many_joined = 16;  ///< states, at once: there are registers for it

  static constexpr std::int64_t max_row_units = (std::int64_t(1) << 32) - 1;

  static bool can_run(const FragmentShape& s) {
    return s.wide && s.head_dim <= DimTile && s.head_dim_v <= DimTile && s.row_units <= max_row_units;
  }
  static constexpr std::size_t scratch_bytes(int, int, int workers, int) {
    return std::size_t(workers) * worker_bytes + (AnyQuery ? 2 : 1) * query_bytes;
  }

  KOKKOS_FUNCTION MmaFragment(const Member& team, const KernelArgsOf<T>& args, char* memory)
      : team_(team), args_(args), memory_(memory), keys_(memory + team.team_rank() * worker_bytes) {
    KOKKOS_IF_ON_DEVICE((lane_ = static_cast<int>(threadIdx.x & 31);))  // that it is not negative saves instructions
    row_    = lane_ >> 2;
    column_ = lane_ & 3;
    policy_ = cuda::read_once_policy();
    // A tile's chunk i of row r lies at place i ^ swizzle(r) of the row. Rows start on multiples of their size, so that
    // a place is changed by xor on the address.
    const std::uint32_t keys = cuda::shared_address(keys_);
    const int row0 = lane_ / copy_lanes, first = lane_ & (copy_lanes - 1);
    copy_at_   = keys + row0 * row_bytes + ((first ^ swizzle(row0)) << 4);
    keys_at_   = keys + (lane_ & 15) * row_bytes + (((lane_ >> 4) ^ swizzle(lane_ & 7)) << 4);
    values_at_ = keys + tile_bytes + ((lane_ & 7) | (lane_ >> 4 << 3)) * row_bytes +
                 (((lane_ >> 3 & 1) ^ swizzle(lane_ & 7)) << 4);
  }

  KOKKOS_FUNCTION int lane_row(int j) const { return 2 * column_ + j; }

  /// Team-wide: into scratch, as rows of Operands. Of other types, rounded to it, and what the rounding left beside it.
  template <class Rows>
  KOKKOS_FUNCTION void load_queries(const Rows& rows_of, float scale) {
    scale_            = scale;
    const int threads = team_.team_size() * 32, thread = team_.team_rank() * 32 + lane_;
    if (args_.wide_queries) {
      PAGODA_UNROLL(1)
      for (int i = thread; i < rows * query_chunks; i += threads) {
        const int r = i / query_chunks, chunk = i % query_chunks;
        const bool none = !rows_of.valid(r) || 8 * chunk >= args_.head_dim;
        const Operand* const q =
            static_cast<const Operand*>(args_.q.data) + (none ? 0 : rows_of.offset(args_.q, r) + 8 * chunk);
        cuda::copy_async(query_place(r, chunk), reinterpret_cast<const char*>(q), policy_, none);
      }
    } else if constexpr (AnyQuery) {
      PAGODA_UNROLL(1)
      for (int i = thread; i < rows * DimTile; i += threads) {
        const int r = i / DimTile, d = i % DimTile;
        const float x                   = d < args_.head_dim ? rows_of.template load_query<float>(r, d) : 0.0f;
        char* const at                  = query_row(r) + (((d / 8) ^ (r & 7)) << 4) + d % 8 * int(sizeof(Operand));
        const auto rounded              = Operand(x);
        *reinterpret_cast<Operand*>(at) = rounded;
        *reinterpret_cast<Operand*>(at + query_bytes) = Operand(x - static_cast<float>(rounded));
      }
    }
    cuda::commit_copies();
  }

  /// Those of a guess that failed: their place in scratch is free again.
  KOKKOS_FUNCTION void forget_queries() const {
    cuda::wait_copies<0>();
    team_.team_barrier();
  }

  /// The first tile's copies begin here; then the queries are taken from scratch.
  template <class Where>
  KOKKOS_FUNCTION void begin(const Where& where, int u, int step, int end, bool known_pages = false, int page = 0) {
    step_ = step, ahead_ = u;
    if constexpr (scaled) begin_scales(where.kv_head);
    if (u < end) {
      keys_from_   = source(args_.k, args_.k_units, where.kv_head, args_.head_dim);
      values_from_ = source(args_.v, args_.v_units, where.kv_head, args_.head_dim_v);
      by_tile_     = where.in_pages(tile_tokens) && args_.near_tokens;
      if (by_tile_ && known_pages) {
        place_.page = page;
        ahead_ += 32 * step_;
      } else {
        look_up(where, end);
      }
    }
    PAGODA_UNROLL_ALL
    for (int s = 0; s < stages; ++s) {
      more_ = comes(u, s * step, end);
      if (more_) turn(where, u + s * step, end);
      copy_keys();
      copy_values();
      next_stage();
    }
    cuda::wait_copies<2 * stages>();
    team_.team_barrier();
    fetch_queries(q_, 0);
    if constexpr (AnyQuery)
      if (!args_.wide_queries) fetch_queries(rest_, query_bytes);
  }

  template <class Where>
  KOKKOS_FUNCTION void multiply_keys(const Where& where, int u, int end) {
    more_ = comes(u, stages * step_, end);
    if (more_) turn(where, u + stages * step_, end);
    cuda::wait_copies<2 * stages - 1>();
    cuda::sync_warp();
    float s[2][4] = {};  // over even and odd steps: shorter chains
    PAGODA_UNROLL_ALL
    for (int i = 0; i < chunks; i += 2) {
      std::uint32_t k[4];  // a chunk of tokens 0 .. 7 and 8 .. 15, then the next
      cuda::load_matrices<false>(k, (keys_at_ ^ (i << 4)) + stage_);
      if constexpr (scaled) {
        PAGODA_UNROLL_ALL
        for (int j = 0; j < 2; ++j) {
          std::uint32_t a[Storage::steps][4];
          Storage::keys(k[2 * j], k[2 * j + 1], a);
          PAGODA_UNROLL_ALL
          for (int step = 0; step < Storage::steps; ++step) multiply(s, Storage::steps * (i + j) + step, a[step]);
        }
      } else {
        multiply(s, i / 2, k);
      }
    }
    [[maybe_unused]] float key_scale[2] = {1, 1};
    if constexpr (scaled) load_scales(key_scale);
    cuda::sync_warp();
    copy_keys();
    PAGODA_UNROLL_ALL
    for (int i = 0; i < 4; ++i) {
      const float sum = s[0][i] + s[1][i];
      x_[i]           = token_at(i) < end - u ? sum * (scale_ * key_scale[i / 2]) : -infinity;
    }
  }

  template <class Change>
  KOKKOS_FUNCTION void for_each_score(int count, const Change& change) {
    PAGODA_UNROLL_ALL
    for (int i = 0; i < 4; ++i)
      if (token_at(i) < count) change(i % 2, token_at(i), x_[i]);
  }

  KOKKOS_FUNCTION void softmax() {
#if defined(__CUDA_ARCH__)
    // Of the weights of value rows: with scales of tokens, the largest is not the most probable token's.
    float most[2];
    PAGODA_UNROLL_ALL
    for (int e = 0; e < 2; ++e) most[e] = fmaxf(x_[e] + weight_log2(0), x_[2 + e] + weight_log2(1));
    if (__any_sync(~0u, most[0] > base_[0] + 8.0f || most[1] > base_[1] + 8.0f)) {
      PAGODA_UNROLL_ALL
      for (int e = 0; e < 2; ++e) {
        for (int d = 4; d < 32; d *= 2) most[e] = fmaxf(most[e], __shfl_xor_sync(~0u, most[e], d));
        const float base = fmaxf(base_[e], most[e]), kept = cuda::exp2(base_[e] - base);
        base_[e] = base;
        sum_[e] *= kept;
        PAGODA_UNROLL_ALL
        for (auto& o : out_) o[e] *= kept, o[2 + e] *= kept;
      }
    }
    PAGODA_UNROLL_ALL
    for (int i = 0; i < 4; ++i) {
      x_[i] = cuda::exp2(x_[i] - base_[i % 2]);
      sum_[i % 2] += x_[i];
    }
    PAGODA_UNROLL_ALL
    for (int i = 0; i < 2; ++i)
      p_[i] = cuda::transpose(cuda::pack<Operand>(x_[2 * i] * weight(i), x_[2 * i + 1] * weight(i)));
#endif
  }

  template <class Where>
  KOKKOS_FUNCTION void multiply_values(const Where&, int, int) {
    cuda::wait_copies<2 * stages - 1>();
    cuda::sync_warp();
    PAGODA_UNROLL_ALL
    for (int i = 0; i < chunks / 2; ++i) {
      std::uint32_t v[4];  // tokens 0 .. 7 of two chunks, then tokens 8 .. 15
      cuda::load_matrices<true>(v, (values_at_ ^ (i << 5)) + stage_);
      if constexpr (scaled) {
        PAGODA_UNROLL_ALL
        for (int j = 0; j < 2; ++j) {
          std::uint32_t a[Storage::steps][4];
          Storage::values(v[j], v[2 + j], a);
          PAGODA_UNROLL_ALL
          for (int step = 0; step < Storage::steps; ++step) {
            float (&o)[4]                = out_[Storage::steps * (2 * i + j) + step];
            const std::uint32_t constant = Storage::lower(step);
            cuda::mma<Operand>(o, a[step][0], a[step][1], a[step][2], a[step][3], p_[0], p_[1]);
            // Tile by tile, so that rounding is that of sums as small as the numbers themselves make.
            if constexpr (lowered) cuda::mma<Operand>(o, constant, constant, constant, constant, p_[0], p_[1]);
          }
        }
      } else {
        cuda::mma<Operand>(out_[i], v[0], v[1], v[2], v[3], p_[0], p_[1]);
      }
    }
    cuda::sync_warp();
    copy_values();
    next_stage();
  }

  KOKKOS_FUNCTION StateArray<float> finish() {
#if defined(__CUDA_ARCH__)
    // Into the worker's own part, which no copy needs any more. A base that was never raised: the row has seen no
    // token.
    PAGODA_UNROLL_ALL
    for (int e = 0; e < 2; ++e) {
      for (int d = 4; d < 32; d *= 2) sum_[e] += __shfl_xor_sync(~0u, sum_[e], d);
      if (row_ == 0)
        reinterpret_cast<RowState<float>*>(keys_ + states_at)[lane_row(e)] = {sum_[e] > 0.0f ? base_[e] : -infinity,
                                                                              sum_[e]};
    }
    PAGODA_UNROLL_ALL
    for (int e = 0; e < 2; ++e) {
      float* const to = reinterpret_cast<float*>(keys_) + (2 * column_ + e) * value_stride;
      PAGODA_UNROLL_ALL
      for (int i = 0; i < DimTile / 16; ++i) {
        to[Storage::dim(i, row_, 0)] = out_[i][e] * (1 / Storage::unit(i));
        to[Storage::dim(i, row_, 1)] = out_[i][2 + e] * (1 / Storage::unit(i));
      }
    }
    team_.team_barrier();
#endif
    return {reinterpret_cast<RowState<float>*>(memory_ + states_at), reinterpret_cast<float*>(memory_), value_stride,
            worker_bytes / static_cast<int>(sizeof(RowState<float>)), worker_bytes / static_cast<int>(sizeof(float))};
  }

 private:
  static constexpr int chunks     = DimTile / Storage::dims;  ///< of 16 bytes in a row
  static constexpr int copy_lanes = chunks;                   ///< that copy a row together
  static constexpr int copy_rows  = 32 / chunks;              ///< at once
  static constexpr int row_bytes  = 16 * chunks;
  static constexpr int tile_bytes = tile_tokens * row_bytes;
  /// Tiles that are on their way at a time, each in a place of its own: what is in flight hides the memory's latency.
  static constexpr int stages       = greatest(1, least(4, 8192 / (2 * tile_bytes)));
  static constexpr int scale_bytes  = scaled ? 2 * tile_tokens * int(sizeof(float)) : 0;  ///< of keys, then of values
  static constexpr int stage_bytes  = 2 * tile_bytes + scale_bytes;
  static constexpr int value_stride = DimTile + 4;  ///< off a multiple of 32 banks
  static constexpr int states_at    = rows * value_stride * static_cast<int>(sizeof(float));
  static constexpr int worker_bytes =
      (greatest<int>(stages * stage_bytes, states_at + rows * int(sizeof(RowState<float>))) + scratch_alignment - 1) /
      scratch_alignment * scratch_alignment;
  static constexpr int query_chunks = DimTile / 8;
  static constexpr int query_bytes  = rows * 16 * query_chunks;
  static_assert(chunks >= 4 && query_chunks >= 8);
  static constexpr bool lowered   = Storage::lower(0) != 0;  ///< values are larger than the numbers, by a constant
  static constexpr float infinity = Kokkos::Experimental::infinity_v<float>;

  /// Eight rows' chunks i lie in different banks at places i ^ swizzle(row). For multiples of copy_rows, swizzle(row +
  /// i) is swizzle(row) ^ swizzle(i).
  KOKKOS_FUNCTION static constexpr int swizzle(int row) { return row_bytes >= 128 ? row & 7 : row >> 1 & 3; }

  /// Rows of queries lie behind the workers' parts, chunk i at place i ^ (row % 8).
  KOKKOS_FUNCTION char* query_row(int r) const {
    return memory_ + team_.team_size() * worker_bytes + r * 16 * query_chunks;
  }
  KOKKOS_FUNCTION std::uint32_t query_place(int r, int chunk) const {
    return cuda::shared_address(query_row(r)) + ((chunk ^ (r & 7)) << 4);
  }
  /// From `part` bytes behind the queries on.
  KOKKOS_FUNCTION void fetch_queries(std::uint32_t* q, int part) const {
    if constexpr (scaled) {
      PAGODA_UNROLL_ALL
      for (int i = 0; i < chunks; ++i) {
        std::uint32_t words[2 * Storage::steps];
        Storage::queries(query_row(row_) + part, row_ & 7, i, column_, words);
        PAGODA_UNROLL_ALL
        for (int j = 0; j < 2 * Storage::steps; ++j) q[2 * Storage::steps * i + j] = words[j];
      }
    } else {
      const std::uint32_t at = query_place(lane_ & 7, lane_ >> 3) + part;
      PAGODA_UNROLL_ALL
      for (int i = 0; i < query_chunks; i += 4) cuda::load_matrices<false>(&q[i], at ^ (i << 4));
    }
  }
  /// s[step % 2] += keys x queries over the 16 dims of a step.
  KOKKOS_FUNCTION void multiply(float (&s)[2][4], int step, const std::uint32_t (&a)[4]) {
    cuda::mma<Operand>(s[step % 2], a[0], a[1], a[2], a[3], q_[2 * step], q_[2 * step + 1]);
    if constexpr (AnyQuery)
      cuda::mma<Operand>(s[step % 2], a[0], a[1], a[2], a[3], rest_[2 * step], rest_[2 * step + 1]);
  }

  /// Where the lane copies scales from: the first half of the lanes those of keys, the others those of values. Where
  /// tokens have none, scratch holds ones.
  KOKKOS_FUNCTION void begin_scales(int kv_head) {
    const ScaleArray& scales = lane_ < tile_tokens ? args_.k_scale : args_.v_scale;
    scales_from_             = nullptr;
    if (scales.per_token()) {
      scales_from_ = scales.at + static_cast<std::int64_t>(kv_head) * scales.head;
      scale_page_ = scales.page, scale_token_ = scales.token;
    } else {
      PAGODA_UNROLL_ALL
      for (int s = 0; s < stages; ++s) scales_at(s * stage_bytes)[lane_] = 1;
    }
  }
  KOKKOS_FUNCTION float* scales_at(int stage) const { return reinterpret_cast<float*>(keys_ + stage + 2 * tile_bytes); }
  /// Scales of the lane's two tokens: of keys into k, of values into value_scale_.
  KOKKOS_FUNCTION void load_scales(float (&k)[2]) {
    const float* const at = scales_at(stage_) + row_;
    k[0] = at[0], k[1] = at[8], value_scale_[0] = at[tile_tokens], value_scale_[1] = at[tile_tokens + 8];
  }
  /// What a probability is multiplied with, and its logarithm, or a lower number if that is none.
  KOKKOS_FUNCTION float weight(int i) const { return scaled ? value_scale_[i] : 1.0f; }
  KOKKOS_FUNCTION float weight_log2(int i) const { return scaled ? cuda::log2(greatest(weight(i), 0x1p-60f)) : 0.0f; }

  /// Which token of a tile the lane's i-th score is of.
  KOKKOS_FUNCTION int token_at(int i) const { return row_ + (i >> 1) * 8; }

  /// Where the lane copies from: its chunk of a kv head's row `row0` of a page 0, and the steps from there.
  struct Source {
    const char* base;
    RowSteps steps;
    std::uint32_t first;  ///< units to the kv head's rows
    bool beyond;          ///< the lane's chunk lies beyond head_dim: zeros
  };
  KOKKOS_FUNCTION Source source(const void* base, const RowSteps& steps, int kv_head, int head_dim) const {
    const int chunk   = lane_ & (copy_lanes - 1);
    const bool beyond = Storage::dims * chunk >= head_dim;
    return {static_cast<const char*>(base) + (beyond ? 0 : 16 * chunk), steps, kv_head * steps.head, beyond};
  }

  /// Page ids come ahead of their use. Where tiles lie within pages, a lane holds that of one tile, and the next 32 are
  /// on their way; otherwise lane n % 16 holds that of its token of the next tile. Lanes beyond the last token repeat
  /// it, so that what is loaded is always a row of the sequence.
  template <class Where>
  KOKKOS_FUNCTION void look_up(const Where& where, int end) {
    const int ahead = by_tile_ ? lane_ * step_ : lane_ & (tile_tokens - 1);
    place_          = where.place(least(ahead_ + ahead, end - 1));
    ahead_ += by_tile_ ? 32 * step_ : step_;
  }
  /// To the tile that begins at token u.
  template <class Where>
  KOKKOS_FUNCTION void turn(const Where& where, int u, int end) {
    whole_ = false;
    if (by_tile_) {
      if ((tile_ & 31) == 0) {
        pages_ = place_.page;
        if (ahead_ < end) look_up(where, end);
      }
      page_ = pages_;
      KOKKOS_IF_ON_DEVICE((page_ = __shfl_sync(~0u, pages_, tile_ & 31);))
      ++tile_;
      slot_  = args_.page_size.rest(u);
      whole_ = u + tile_tokens <= end;
      if (!whole_) slot_ += least(lane_ & (tile_tokens - 1), end - 1 - u);
    } else {
      page_ = place_.page, slot_ = place_.slot;
      look_up(where, end);
    }
  }
  /// With the scales, those of the values included: the softmax needs them before the values.
  KOKKOS_FUNCTION void copy_keys() {
    if constexpr (scaled) {
      if (more_ && scales_from_) {
        const auto page = static_cast<std::uint32_t>(page_);
        const auto slot = static_cast<std::uint32_t>(whole_ ? slot_ + (lane_ & (tile_tokens - 1)) : slot_);
        cuda::copy_word_async(cuda::shared_address(scales_at(stage_) + lane_),
                              scales_from_ + (static_cast<std::uint64_t>(page) * scale_page_ +
                                              static_cast<std::uint64_t>(slot) * scale_token_));
      }
    }
    copy(0, keys_from_);
  }
  /// u + step < end, where the sum may exceed 2^31.
  KOKKOS_FUNCTION static bool comes(int u, int step, int end) {
    return static_cast<unsigned>(u) + static_cast<unsigned>(step) < static_cast<unsigned>(end);
  }
  KOKKOS_FUNCTION void copy_values() { copy(tile_bytes, values_from_); }

  /// The place of the next tile. A tile is copied to where the one that many stages before it was.
  KOKKOS_FUNCTION void next_stage() {
    if constexpr (stages > 1) stage_ = stage_ + stage_bytes == stages * stage_bytes ? 0 : stage_ + stage_bytes;
  }

  /// Begins to copy the rows of the tile turned to, if there is one, to so many bytes behind the keys: each lane a
  /// chunk of every so many rows. Rows of a whole tile within a page follow each other in even steps; the places of
  /// others are told by the lanes that know them.
  KOKKOS_FUNCTION void copy(int behind_keys, const Source& from) {
    const int to = stage_ + behind_keys;
    if (!more_) return cuda::commit_copies();
    const std::uint32_t units = page_ * from.steps.page + slot_ * from.steps.token + from.first;
    const int row0            = lane_ / copy_lanes;
    if (whole_) {
      const char* const row = from.base + static_cast<std::uint64_t>(units + row0 * from.steps.token) * args_.row_unit;
      const std::uint32_t bytes = from.steps.token * args_.row_unit;
      PAGODA_UNROLL_ALL
      for (int i = 0; i < tile_tokens; i += copy_rows)
        cuda::copy_async((copy_at_ ^ (swizzle(i) << 4)) + to + i * row_bytes,
                         row + static_cast<std::uint64_t>(bytes) * i, policy_, from.beyond);
    } else {
      PAGODA_UNROLL_ALL
      for (int i = 0; i < tile_tokens; i += copy_rows) {
        std::uint32_t at = units;
        KOKKOS_IF_ON_DEVICE((at = __shfl_sync(~0u, units, row0 + i);))
        cuda::copy_async((copy_at_ ^ (swizzle(i) << 4)) + to + i * row_bytes,
                         from.base + static_cast<std::uint64_t>(at) * args_.row_unit, policy_, from.beyond);
      }
    }
    cuda::commit_copies();
  }

  const Member& team_;
  const KernelArgsOf<T>& args_;
  char* memory_;
  char* keys_;  ///< the worker's part of scratch: a tile of keys, then one of values
  int lane_ = 0, row_, column_;
  int step_ = 0, ahead_ = 0, tile_ = 0, pages_ = 0;
  bool by_tile_ = false;     ///< tiles lie within pages
  int stage_    = 0;         ///< bytes to the tile's place
  bool more_    = false;     ///< there is a tile to copy
  bool whole_   = false;     ///< the tile turned to lies in one page and before the end
  int page_ = 0, slot_ = 0;  ///< where it begins; if it is not whole, where the lane's token (lane % 16) lies
  PagePlace place_{};
  Source keys_from_{}, values_from_{};
  std::uint32_t copy_at_, keys_at_, values_at_;  ///< the lane's, in shared memory
  std::uint64_t policy_;
  const float* scales_from_ = nullptr;
  std::uint32_t scale_page_ = 0, scale_token_ = 0;
  float value_scale_[2] = {1, 1};  ///< of the lane's tokens
  std::uint32_t q_[query_chunks], rest_[AnyQuery ? query_chunks : 1] = {};
  float x_[4];  ///< of the lane's first token, both rows, then of its second
  std::uint32_t p_[2];
  float out_[DimTile / 16][4] = {};
  /// Lower than any score, and finite, so that differences with it are numbers.
  float base_[2] = {-1e30f, -1e30f}, sum_[2] = {}, scale_ = 1;
};

}  // namespace pagoda::detail
