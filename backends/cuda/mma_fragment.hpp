// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/any_rows.hpp"
#include "backends/cuda/block_scales.hpp"
#include "backends/cuda/e2m1_storage.hpp"
#include "backends/cuda/mma_storage.hpp"
#include "backends/cuda/online_softmax.hpp"
#include "backends/cuda/primitives.hpp"
#include "src/kernel/arithmetic.hpp"
#include "src/kernel/fragment.hpp"
#include "src/kernel/join.hpp"
#include "src/kernel/rows.hpp"
#include "src/kernel/unroll.hpp"

#include <pagoda/types.hpp>

#include <Kokkos_Core.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <variant>

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
/// Where query rows see different tokens, a value that is not finite must not reach the rows that do not see it, and 0
/// times it is NaN: such tiles are multiplied row by row (multiply_visible_values).
///
/// DimTile: a power of two; head dims up to this many, with zeros beyond the actual ones. AnyQuery: queries of other
/// types than the cache's, and score options. AnyAlignment: rows may begin on any byte and be of any length. They are
/// copied as the 16-byte chunks of memory that they touch, and shifted into place in scratch (realign).
template <class T, int DimTile, bool AnyQuery = false, bool AnyAlignment = false>
class MmaFragment : public FragmentDefaults<T> {
 public:
  template <bool General>
  using Instance                             = MmaFragment<T, DimTile, General, AnyAlignment>;
  using Acc                                  = float;
  using Member                               = typename Kokkos::TeamPolicy<Kokkos::Cuda>::member_type;
  static constexpr bool general_only         = AnyAlignment;  ///< one instance will do
  static constexpr bool starts_speculatively = true;
  static constexpr bool any_query            = AnyQuery;
  static constexpr int rows                  = 8;
  static constexpr int lane_rows             = 2;
  static constexpr int scratch_alignment     = 512;  ///< the longest row of a tile
  static constexpr int tile_tokens           = 16;
  using Storage                              = MmaStorage<T>;
  using Operand                              = typename Storage::Operand;
  using FragmentDefaults<T>::scaled;
  using FragmentDefaults<T>::block_dims;
  static constexpr bool in_blocks         = block_dims > 0;
  using ValueOperand                      = typename Storage::ValueOperand;
  static constexpr DType probability_type = dtype_v<Operand>;
  static constexpr DType query_type       = dtype_v<Operand>;
  /// Of four warps, so that their scratch and registers fit: what is in flight on an SM hides the memory's latency.
  static constexpr int teams_per_sm = DimTile <= 64 ? 4 : DimTile <= 128 ? 3 : 2;

  static constexpr int many_joined = 16;  ///< states, at once: there are registers for it

  static constexpr std::int64_t max_row_units =
      AnyAlignment ? std::numeric_limits<std::int64_t>::max() : (std::int64_t(1) << 32) - 1;

  static constexpr int row_alignment = AnyAlignment ? 1 : 16;  ///< bytes
  static bool can_run(const FragmentShape& s) {
    if (!s.dense_dims || s.head_dim > DimTile || s.head_dim_v > DimTile) return false;
    return AnyAlignment || (s.row_alignment >= row_alignment && s.head_dim % Storage::dims == 0 &&
                            s.head_dim_v % Storage::dims == 0 && s.row_units <= max_row_units);
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
    next_at_   = keys + row0 * row_bytes + (((first + 1) ^ swizzle(row0)) << 4);
    values_at_ = keys + tile_bytes + ((lane_ & 7) | (lane_ >> 4 << 3)) * row_bytes +
                 (((lane_ >> 3 & 1) ^ swizzle(lane_ & 7)) << 4);
    if constexpr (in_blocks) keys_at_ = cuda::opaque(keys_at_), values_at_ = cuda::opaque(values_at_);
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
      if (args_.q.type == query_type) {
        copy_queries(rows_of, thread, threads);
        return cuda::commit_copies();
      }
      PAGODA_UNROLL(1)
      for (int i = thread; i < rows * DimTile; i += threads) {
        const int r = i / DimTile, d = i % DimTile;
        const float x                   = d < args_.head_dim ? rows_of.template load_query<float>(r, d) : 0.0f;
        char* const at                  = query_element(r, d);
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
    if constexpr (in_blocks) {
      const bool key = lane_ < tile_tokens;
      block_bytes_   = cuda::opaque(Storage::bytes_of(lane_));
      lowest_code_   = key ? 0 : 119;
      blocks_.begin(key ? args_.k_blocks : args_.v_blocks, where.kv_head,
                    blocks_of(dtype_v<T>, key ? args_.head_dim : args_.head_dim_v));
    } else if constexpr (scaled) {
      begin_scales(where.kv_head);
    }
    if (u < end) {
      if constexpr (AnyAlignment) {
        keys_from_ = AnyRows::of<T>(args_.k, args_.k_page, args_.k_token, where.kv_head * args_.k_head, args_.head_dim);
        values_from_ =
            AnyRows::of<T>(args_.v, args_.v_page, args_.v_token, where.kv_head * args_.v_head, args_.head_dim_v);
      } else {
        keys_from_   = source(args_.k, args_.k_units, where.kv_head, args_.head_dim);
        values_from_ = source(args_.v, args_.v_units, where.kv_head, args_.head_dim_v);
      }
      by_tile_ = where.in_pages(tile_tokens) && args_.near_tokens;
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
  }

  template <class Where>
  KOKKOS_FUNCTION void multiply_keys(const Where& where, int u, int end) {
    more_ = comes(u, stages * step_, end);
    if (more_) turn(where, u + stages * step_, end);
    cuda::wait_copies<2 * stages - 1>();
    cuda::sync_warp();
    if constexpr (AnyAlignment) realign(0);
    if constexpr (in_blocks) {
      convert_scales();
      cuda::sync_warp();
    }
    float s[2][4] = {};  // over even and odd steps: shorter chains
    add_key_products(s, q_);
    if constexpr (AnyQuery)
      if (args_.q.type != query_type) {
        std::uint32_t rest[query_chunks];  // of the queries' rounding: read anew for each tile, for want of registers
        fetch_queries(rest, query_bytes);
        add_key_products(s, rest);
      }
    [[maybe_unused]] float key_scale[2] = {1, 1};
    if constexpr (scaled && !in_blocks) load_scales(key_scale);
    cuda::sync_warp();
    copy_keys();
    PAGODA_UNROLL_ALL
    for (int i = 0; i < 4; ++i) {
      const float sum = scales_weights ? s[0][i] : s[0][i] + s[1][i];
      x_[i]           = token_at(i) < end - u ? sum * (scale_ * key_factor * key_scale[i / 2]) : -infinity;
    }
  }

  template <class Change>
  KOKKOS_FUNCTION void for_each_score(int count, const Change& change) {
    PAGODA_UNROLL_ALL
    for (int i = 0; i < 4; ++i)
      if (token_at(i) < count) change(i % 2, token_at(i), x_[i]);
  }

  KOKKOS_FUNCTION void softmax(bool hides) {
#if defined(__CUDA_ARCH__)
    // Of the weights of value rows: with scales of tokens, the largest is not the most probable token's.
    float most[2];
    PAGODA_UNROLL_ALL
    for (int e = 0; e < 2; ++e) most[e] = fmaxf(x_[e], x_[2 + e]);
    if constexpr (scaled && !in_blocks)
      for (int e = 0; e < 2; ++e) most[e] = fmaxf(x_[e] + weight_log2(0), x_[2 + e] + weight_log2(1));
    if (__any_sync(~0u, most[0] > base_[0] + rescale_threshold || most[1] > base_[1] + rescale_threshold)) {
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
    const auto exponentiate = [&](auto hiding) {
      PAGODA_UNROLL_ALL
      for (int i = 0; i < 4; ++i) {
        const bool hidden = hiding && x_[i] == -infinity;
        x_[i]             = cuda::exp2(x_[i] - base_[i % 2]);
        sum_[i % 2] += x_[i];
        x_[i] = hidden ? cuda::hidden_probability : x_[i] * weight(i / 2);
      }
    };
    if (AnyQuery && hides) {
      exponentiate(std::true_type{});
    } else {
      exponentiate(std::false_type{});
    }
    PAGODA_UNROLL_ALL
    for (int i = 0; i < 2; ++i) {
      if (!scales_weights || fits_) {
        p_[i] = cuda::transpose(cuda::pack<Operand>(x_[2 * i], x_[2 * i + 1]));
      } else {
        const std::uint32_t word = cuda::pack<ValueOperand>(x_[2 * i], x_[2 * i + 1]);
        float low, high;
        cuda::unpack<ValueOperand>(word, low, high);
        p_[i]      = cuda::transpose(word);
        p_rest_[i] = cuda::transpose(cuda::pack<ValueOperand>(x_[2 * i] - low, x_[2 * i + 1] - high));
      }
    }
#endif
  }

  template <class Where>
  KOKKOS_FUNCTION void multiply_values(const Where&, int, int, bool hides) {
    cuda::wait_copies<2 * stages - 1>();
    cuda::sync_warp();
    if constexpr (AnyAlignment) realign(tile_bytes);
    if (scales_weights && fits_) {
      if constexpr (scales_weights) multiply_scaled_weights();
    } else if (AnyQuery && floating && hides && !values_are_finite()) {
      multiply_visible_values();
    } else {
      for_each_value([&](int o, const std::uint32_t (&a)[4]) {
        multiply_value(out_[o], a);
        // Tile by tile, so that rounding is that of sums as small as the numbers themselves make.
        const std::uint32_t constant = Storage::lower(o);
        if constexpr (lowered) multiply_value(out_[o], {constant, constant, constant, constant});
      });
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
        reinterpret_cast<RowState<float>*>(keys_ + states_at)[lane_row(e)] = {sum_[e] == 0.0f ? -infinity : base_[e],
                                                                              sum_[e]};
    }
    PAGODA_UNROLL_ALL
    for (int e = 0; e < 2; ++e) {
      float* const to = reinterpret_cast<float*>(keys_) + (2 * column_ + e) * value_stride;
      PAGODA_UNROLL_ALL
      for (int i = 0; i < DimTile / 16; ++i) {
        float factor = 1 / Storage::unit(i);
        if constexpr (scales_weights) factor = Kokkos::bit_cast<float>((127 + out_unit_) << 23);
        to[Storage::dim(i, row_, 0)] = out_[i][e] * factor;
        to[Storage::dim(i, row_, 1)] = out_[i][2 + e] * factor;
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
  static constexpr int stages = greatest(1, least(4, 8192 / (2 * tile_bytes)));
  /// Words of a row's block scales.
  static constexpr int block_words = (blocks_of(dtype_v<T>, DimTile) + 3) / 4;
  using BlockCopies                = BlockScaleCopies<greatest(1, block_words), stages>;
  static constexpr int converted_row_bytes = 8 * block_words;
  /// Scales of keys, then of values.
  static constexpr int scale_bytes  = in_blocks ? BlockCopies::stage_bytes
                                      : scaled  ? 2 * tile_tokens * int(sizeof(float))
                                                : 0;
  static constexpr int row_begins   = 2 * tile_bytes + scale_bytes;  ///< see realign
  static constexpr int row_ends     = row_begins + 2 * tile_tokens * int(sizeof(int));
  static constexpr int stage_bytes  = AnyAlignment ? row_ends + 2 * tile_tokens * 16 : row_begins;
  static constexpr int value_stride = DimTile + 4;  ///< off a multiple of 32 banks
  static constexpr int states_at    = rows * value_stride * static_cast<int>(sizeof(float));
  static constexpr int converted_at = stages * stage_bytes;  ///< block scales of the tile in turn, ready for use
  static constexpr int worker_bytes =
      (greatest<int>(converted_at + 32 * converted_row_bytes, states_at + rows * int(sizeof(RowState<float>))) + scratch_alignment - 1) /
      scratch_alignment * scratch_alignment;
  static constexpr int query_chunks = DimTile / 8;
  static constexpr int query_bytes  = rows * 16 * query_chunks;
  static_assert(chunks >= 4 && query_chunks >= 8);
  static constexpr bool lowered       = Storage::lower(0) != 0;  ///< values are larger than the numbers, by a constant
  static constexpr bool floating      = !lowered;                ///< values may be infinite or NaN
  static constexpr bool scales_weights = [] {  ///< scales of values are multiplied with probabilities
    if constexpr (in_blocks) return Storage::scales_weights;
    return false;
  }();
  static constexpr float key_factor = [] {  ///< what makes scores of sums of products
    if constexpr (in_blocks) return 1 / Storage::key_unit;
    return 1.0f;
  }();
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
  KOKKOS_FUNCTION char* query_element(int r, int d) const {
    return query_row(r) + (((d / 8) ^ (r & 7)) << 4) + d % 8 * int(sizeof(Operand));
  }
  /// Queries of the operands' type and of any strides into scratch.
  template <class Rows>
  KOKKOS_FUNCTION void copy_queries(const Rows& rows_of, int thread, int threads) const {
    constexpr int at_once = 4;  // loads on their way before the first is needed
    PAGODA_UNROLL(1)
    for (int first = thread; first < rows * DimTile; first += at_once * threads) {
      Operand x[at_once];
      PAGODA_UNROLL_ALL
      for (int j = 0; j < at_once; ++j) {
        const int i = first + j * threads, r = i / DimTile, d = i % DimTile;
        x[j] = Operand(0.0f);
        if (r < rows && d < args_.head_dim && rows_of.valid(r))
          x[j] = static_cast<const Operand*>(args_.q.data)[rows_of.offset(args_.q, r) + rows_of.dims(args_.q, d)];
      }
      PAGODA_UNROLL_ALL
      for (int j = 0; j < at_once; ++j) {
        const int i = first + j * threads;
        if (i < rows * DimTile) *reinterpret_cast<Operand*>(query_element(i / DimTile, i % DimTile)) = x[j];
      }
    }
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
  /// s += keys x queries, over the tile's tokens. Even and odd steps of 16 dims have sums of their own.
  KOKKOS_FUNCTION void add_key_products(float (&s)[2][4], const std::uint32_t (&q)[query_chunks]) const {
    constexpr int scale_words = !in_blocks ? 1 : scales_weights ? 2 * block_words : block_words;
    [[maybe_unused]] std::uint32_t scale[2][scale_words];  // of the lane's tokens
    if constexpr (in_blocks)
      for (int t = 0; t < 2; ++t) {
        const char* const from = keys_ + converted_at + (row_ + 8 * t) * converted_row_bytes;
        if constexpr (scales_weights) {
          load_words(scale[t], from);
        } else {
          load_words(scale[t], from + Storage::key_block(column_) * (converted_row_bytes / 2));
        }
      }
    PAGODA_UNROLL_ALL
    for (int i = 0; i < chunks; i += 2) {
      std::uint32_t k[4];  // a chunk of tokens 0 .. 7 and 8 .. 15, then the next
      cuda::load_matrices<false>(k, (keys_at_ ^ (i << 4)) + stage_);
      if constexpr (scaled) {
        PAGODA_UNROLL_ALL
        for (int j = 0; j < 2; ++j) {
          std::uint32_t a[Storage::steps][4];
          Storage::keys(k[2 * j], k[2 * j + 1], a);
          if constexpr (scales_weights) {
            float sum[4] = {};
            PAGODA_UNROLL_ALL
            for (int step = 0; step < Storage::steps; ++step) {
              const int n = Storage::steps * (i + j) + step;
              cuda::mma<Operand>(sum, a[step][0], a[step][1], a[step][2], a[step][3], q[2 * n], q[2 * n + 1]);
            }
            PAGODA_UNROLL_ALL
            for (int e = 0; e < 4; ++e)
              s[0][e] += sum[e] * Storage::template key_scale<block_words>(scale[e / 2], i + j);
          } else if constexpr (in_blocks) {
            if (j == 0) {
              Storage::template scale_keys<0>(a, scale[0][i / 2], scale[1][i / 2]);
            } else {
              Storage::template scale_keys<1>(a, scale[0][i / 2], scale[1][i / 2]);
            }
            PAGODA_UNROLL_ALL
            for (int step = 0; step < Storage::steps; ++step) multiply(s, q, Storage::steps * (i + j) + step, a[step]);
          } else {
            PAGODA_UNROLL_ALL
            for (int step = 0; step < Storage::steps; ++step) multiply(s, q, Storage::steps * (i + j) + step, a[step]);
          }
        }
      } else {
        multiply(s, q, i / 2, k);
      }
    }
  }
  /// s[step % 2] += keys x queries over the 16 dims of a step.
  KOKKOS_FUNCTION static void multiply(float (&s)[2][4], const std::uint32_t (&q)[query_chunks], int step,
                                       const std::uint32_t (&a)[4]) {
    cuda::mma<Operand>(s[step % 2], a[0], a[1], a[2], a[3], q[2 * step], q[2 * step + 1]);
  }
  /// sum += values x weights.
  KOKKOS_FUNCTION void multiply_value(float (&sum)[4], const std::uint32_t (&a)[4]) const {
    cuda::mma<ValueOperand>(sum, a[0], a[1], a[2], a[3], p_[0], p_[1]);
    if constexpr (scales_weights) cuda::mma<ValueOperand>(sum, a[0], a[1], a[2], a[3], p_rest_[0], p_rest_[1]);
  }

  /// out_ += values x weights, where the scales of values are in the range for weights to be multiplied with them.
  KOKKOS_FUNCTION void multiply_scaled_weights() {
    std::uint32_t scale[2][4 * block_words];  // of tokens 2 column and the next, and of those 8 behind
    for (int t = 0; t < 2; ++t)
      load_words(scale[t], keys_ + converted_at + (tile_tokens + 2 * column_ + 8 * t) * converted_row_bytes);
    PAGODA_UNROLL_ALL
    for (int i = 0; i < chunks / 2; ++i) {
      std::uint32_t v[4];
      cuda::load_matrices<true>(v, (values_at_ ^ (i << 5)) + stage_);
      PAGODA_UNROLL_ALL
      for (int j = 0; j < 2; ++j) {
        std::uint32_t a[Storage::steps][4], p[2];
        Storage::unscaled_values(v[j], v[2 + j], a);
        PAGODA_UNROLL_ALL
        for (int t = 0; t < 2; ++t)
          p[t] = cuda::multiply_pairs<half_t>(p_[t], Storage::template weight_scales<block_words>(scale[t], 2 * i + j));
        PAGODA_UNROLL_ALL
        for (int step = 0; step < Storage::steps; ++step) {
          auto& out = out_[Storage::steps * (2 * i + j) + step];
          cuda::mma<half_t>(out, a[step][0], a[step][1], a[step][2], a[step][3], p[0], p[1]);
        }
      }
    }
  }

  /// f(o, a): operand a of output o, for all values of the tile.
  template <class F>
  KOKKOS_FUNCTION void for_each_value(const F& f) const {
    [[maybe_unused]] std::uint32_t scale[2][in_blocks ? 2 * block_words : 1];  // of tokens 2 column, + 1, and 8 behind
    [[maybe_unused]] std::uint32_t codes[4][in_blocks ? block_words : 1];
    if constexpr (scales_weights) {
      for (int t = 0; t < 4; ++t)
        for (int i = 0; i < block_words; ++i)
          codes[t][i] = reinterpret_cast<const std::uint32_t*>(
              keys_ + converted_at + (tile_tokens + 2 * column_ + t % 2 + 8 * (t / 2)) * converted_row_bytes)[i];
    } else if constexpr (in_blocks)
      for (int t = 0; t < 2; ++t)
        load_words(scale[t], keys_ + converted_at + (tile_tokens + 2 * column_ + 8 * t + Storage::value_block(row_)) *
                                                        converted_row_bytes);
    PAGODA_UNROLL_ALL
    for (int i = 0; i < chunks / 2; ++i) {
      std::uint32_t v[4];  // tokens 0 .. 7 of two chunks, then tokens 8 .. 15
      cuda::load_matrices<true>(v, (values_at_ ^ (i << 5)) + stage_);
      if constexpr (scaled) {
        PAGODA_UNROLL_ALL
        for (int j = 0; j < 2; ++j) {
          std::uint32_t a[Storage::steps][4];
          if constexpr (scales_weights) {
            const int block = 2 * i + j, word = block / 4;
            Storage::values(v[j], v[2 + j], {codes[0][word], codes[1][word], codes[2][word], codes[3][word]},
                            block % 4, a);
          } else if constexpr (in_blocks) {
            const int n = j * block_words + i;
            Storage::values(v[j], v[2 + j], scale[0][n], scale[1][n], a);
          } else {
            Storage::values(v[j], v[2 + j], a);
          }
          PAGODA_UNROLL_ALL
          for (int step = 0; step < Storage::steps; ++step) f(Storage::steps * (2 * i + j) + step, a[step]);
        }
      } else {
        f(i, v);
      }
    }
  }
  KOKKOS_FUNCTION bool values_are_finite() const {
    std::uint32_t zeros = 0;
    for_each_value([&](int, const std::uint32_t (&a)[4]) {
      PAGODA_UNROLL_ALL
      for (const std::uint32_t word : a) zeros = cuda::add_zero_times<ValueOperand>(word, zeros);
    });
    return !cuda::any_lane((zeros & 0x7fff7fffu) != 0);
  }
  /// The second product where values that are not finite stand beside probabilities of tokens that a row does not see:
  /// a product for each row, with 0 in place of the values that it does not see. Slow, and rare.
  KOKKOS_FUNCTION void multiply_visible_values() {
    PAGODA_UNROLL(1)
    for (int r = 0; r < rows; ++r) {
      // The lane's words of operand a are of tokens 2 column, 2 column + 1, and of those 8 behind.
      const int lane           = 4 * r + column_;
      const std::uint32_t seen = cuda::visible_halves(cuda::from_lane(p_[0], lane));
      const std::uint32_t next = cuda::visible_halves(cuda::from_lane(p_[1], lane));
      for_each_value([&](int o, const std::uint32_t (&a)[4]) {
        float sum[4] = {};
        multiply_value(sum, {a[0] & seen, a[1] & seen, a[2] & next, a[3] & next});
        PAGODA_UNROLL_ALL
        for (int e = 0; e < 2; ++e)
          if (lane_row(e) == r) out_[o][e] += sum[e], out_[o][2 + e] += sum[2 + e];
      });
    }
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
  KOKKOS_FUNCTION float weight(int i) const { return scaled && !in_blocks ? value_scale_[i] : 1.0f; }
  KOKKOS_FUNCTION float weight_log2(int i) const {
    return scaled && !in_blocks ? cuda::log2(greatest(weight(i), 0x1p-60f)) : 0.0f;
  }

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
    if constexpr (in_blocks) {
      blocks_.next();
      if (!more_) return cuda::commit_copies();
      blocks_.copy(cuda::shared_address(block_row()), page_, whole_ ? slot_ + (lane_ & (tile_tokens - 1)) : slot_);
    } else if constexpr (scaled) {
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
  KOKKOS_FUNCTION void copy_values() {
    copy(tile_bytes, values_from_);
  }
  /// The lane's row of block scales in the tile's stage.
  KOKKOS_FUNCTION char* block_row() const {
    return keys_ + stage_ + 2 * tile_bytes + lane_ * BlockCopies::row_bytes;
  }
  /// Block scales of the lane's row, as the products need them, into scratch.
  KOKKOS_FUNCTION void convert_scales() {
    std::uint32_t words[block_words], x[2 * block_words];
    blocks_.load(words, block_row());
    if constexpr (scales_weights) {
      fits_ = !cuda::any_lane(!Storage::convert(lane_, block_bytes_, lowest_code_, words, x));
      if (!fits_) {
        fits_ = change_unit(words);
        static_cast<void>(Storage::convert(lane_, block_bytes_, lowest_code_, words, x));
        if (!fits_ && lane_ >= tile_tokens)
          for (int i = 0; i < block_words; ++i) x[i] = words[i];
      }
    } else {
      Storage::convert(lane_, block_bytes_, words, x);
    }
    store_words(keys_ + converted_at + lane_ * converted_row_bytes, x);
  }
  /// Chooses the unit of the output for the scales of the tile's values. If they are too far apart for one, the unit
  /// becomes 1, and the result is false.
  KOKKOS_FUNCTION bool change_unit(const std::uint32_t (&words)[block_words]) {
    const bool key = lane_ < tile_tokens;
    int low = 255, high = 0;
    PAGODA_UNROLL_ALL
    for (int i = 0; i < 4 * block_words; ++i) {
      const int code = static_cast<int>(words[i / 4] >> (8 * (i % 4)) & 255);
      low = least(low, code), high = greatest(high, code);
    }
    low = cuda::min_of_lanes(key ? 255 : low), high = cuda::max_of_lanes(key ? 0 : high);
    const int room   = high - low < 12 ? 4 : 0;  // for larger scales to come
    const int lowest = high + room + 1 - Storage::exponents;
    const bool fit   = high - low < Storage::exponents && lowest > 80 && lowest < 160;
    set_unit(fit ? lowest - 119 + 14 : 0);
    if (!key) lowest_code_ = fit ? lowest : -256;  // no code fits the latter
    return fit;
  }
  /// From here on the output is in units of 2^exponent.
  KOKKOS_FUNCTION void set_unit(int exponent) {
    const float factor = Kokkos::bit_cast<float>((127 + out_unit_ - exponent) << 23);
    out_unit_          = exponent;
    PAGODA_UNROLL_ALL
    for (auto& o : out_)
      for (float& x : o) x *= factor;
  }
  template <int N>
  KOKKOS_FUNCTION static void store_words(char* to, const std::uint32_t (&x)[N]) {
    PAGODA_UNROLL_ALL
    for (int i = 0; i < N; i += 4) {
      if constexpr (N % 4 == 0) {
        *reinterpret_cast<uint4*>(to + 4 * i) = uint4{x[i], x[i + 1], x[i + 2], x[i + 3]};
      } else {
        *reinterpret_cast<uint2*>(to + 4 * i) = uint2{x[i], x[i + 1]};
      }
    }
  }
  template <int N>
  KOKKOS_FUNCTION static void load_words(std::uint32_t (&x)[N], const char* from) {
    PAGODA_UNROLL_ALL
    for (int i = 0; i < N; i += 4) {
      if constexpr (N % 4 == 0) {
        const uint4 w = *reinterpret_cast<const uint4*>(from + 4 * i);
        x[i] = w.x, x[i + 1] = w.y, x[i + 2] = w.z, x[i + 3] = w.w;
      } else {
        const uint2 w = *reinterpret_cast<const uint2*>(from + 4 * i);
        x[i] = w.x, x[i + 1] = w.y;
      }
    }
  }

  /// The place of the next tile. A tile is copied to where the one that many stages before it was.
  KOKKOS_FUNCTION void next_stage() {
    if constexpr (stages > 1) stage_ = stage_ + stage_bytes == stages * stage_bytes ? 0 : stage_ + stage_bytes;
  }

  /// Begins to copy the rows of the tile turned to, if there is one, to so many bytes behind the keys: each lane a
  /// chunk of every so many rows. Rows of a whole tile within a page follow each other in even steps; the places of
  /// others are told by the lanes that know them.
  KOKKOS_FUNCTION void copy(int behind_keys, const AnyRows& from) {
    if (!more_) return cuda::commit_copies();
    const int token = lane_ & (tile_tokens - 1), row0 = lane_ / copy_lanes, to = stage_ + behind_keys;
    const std::uint64_t row = from.row(page_, slot_ + (whole_ ? token : 0));  // of the lane's token
    if (lane_ < tile_tokens) {
      row_begin(behind_keys, token) = AnyRows::begin(row);
      from.copy_chunk(row_end_at(behind_keys, token), row, copy_lanes, policy_);
    }
    PAGODA_UNROLL_ALL
    for (int i = 0; i < tile_tokens; i += copy_rows)
      from.copy_chunk((copy_at_ ^ (swizzle(i) << 4)) + to + i * row_bytes, cuda::from_lane(row, row0 + i),
                      lane_ & (copy_lanes - 1), policy_);
    cuda::commit_copies();
  }
  /// Beside a stage's tiles: where in their first chunks the rows of keys, then of values, begin; and the last chunk of
  /// each row, for which its tile has no room.
  KOKKOS_FUNCTION int& row_begin(int behind_keys, int row) const {
    return reinterpret_cast<int*>(keys_ + stage_ + row_begins)[behind_keys / tile_bytes * tile_tokens + row];
  }
  KOKKOS_FUNCTION std::uint32_t row_end_at(int behind_keys, int row) const {
    return cuda::shared_address(keys_ + stage_ + row_ends) + 16 * (behind_keys / tile_bytes * tile_tokens + row);
  }
  /// Shifts the rows of a tile that was copied from any address to where they belong, so that chunk i of a row is its
  /// i-th 16 bytes.
  KOKKOS_FUNCTION void realign(int behind_keys) const {
    constexpr int at_once = least(4, tile_tokens / copy_rows);  // steps: their loads hide each other's latency
    const int row0 = lane_ / copy_lanes, to = stage_ + behind_keys;
    const bool last = (lane_ & (copy_lanes - 1)) == copy_lanes - 1;
    PAGODA_UNROLL_ALL
    for (int first = 0; first < tile_tokens; first += at_once * copy_rows) {
      std::uint32_t words[at_once][4];
      PAGODA_UNROLL_ALL
      for (int j = 0; j < at_once; ++j) {
        const int i = first + j * copy_rows;
        std::uint32_t low[4], high[4];
        cuda::load_shared(low, (copy_at_ ^ (swizzle(i) << 4)) + to + i * row_bytes);
        cuda::load_shared(
            high, last ? row_end_at(behind_keys, row0 + i) : (next_at_ ^ (swizzle(i) << 4)) + to + i * row_bytes);
        shift_bytes(words[j], low, high, row_begin(behind_keys, row0 + i));
      }
      cuda::sync_warp();  // all lanes have read the rows
      PAGODA_UNROLL_ALL
      for (int j = 0; j < at_once; ++j) {
        const int i = first + j * copy_rows;
        cuda::store_shared((copy_at_ ^ (swizzle(i) << 4)) + to + i * row_bytes, words[j]);
      }
    }
    cuda::sync_warp();
  }
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
  std::conditional_t<AnyAlignment, AnyRows, Source> keys_from_{}, values_from_{};
  std::uint32_t copy_at_, next_at_, keys_at_, values_at_;  ///< the lane's, in shared memory
  std::uint64_t policy_;
  const float* scales_from_ = nullptr;
  std::uint32_t scale_page_ = 0, scale_token_ = 0;
  std::conditional_t<in_blocks, BlockCopies, std::monostate> blocks_{};
  std::uint32_t block_bytes_ = 0;  ///< which bytes of block scales the lane converts
  /// Where scales of values are multiplied with weights: the lowest code of such scales (of lanes that convert them);
  /// whether those of the tile are in the range that begins there; and the exponent of the output's unit.
  int lowest_code_ = 0, out_unit_ = 14;
  bool fits_         = true;
  float value_scale_[2] = {1, 1};  ///< of the lane's tokens
  std::uint32_t q_[query_chunks];
  float x_[4];                      ///< of the lane's first token, both rows, then of its second
  std::uint32_t p_[2], p_rest_[2];  ///< weights, and what is left of them where they are split
  float out_[DimTile / 16][4] = {};
  float base_[2] = {initial_max, initial_max}, sum_[2] = {}, scale_ = 1;
};

}  // namespace pagoda::detail
