// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/mma_storage.hpp"
#include "backends/cuda/mma_values.hpp"
#include "backends/cuda/primitives.hpp"
#include "src/base/arithmetic.hpp"
#include "src/base/unroll.hpp"
#include "src/kernel/fragment.hpp"
#include "src/kernel/join.hpp"
#include "src/kernel/online_softmax.hpp"
#include "src/kernel/rows.hpp"

#include <pagoda/types.hpp>

#include <Kokkos_Core.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace pagoda::detail {

/// The fragment for mma.sync.m16n8k16 (sm_80 and newer): 8 query rows, 16 tokens a tile.
///
///  - Keys and values are copied asynchronously to the worker's own part of scratch, one tile ahead: copies of keys
///    start when the scores are complete, copies of values when the output is. Only the worker itself waits for them.
///  - In both products, operand A (16 rows) comes from the cache: keys as stored, values transposed by the load. The 8
///    query rows are the columns of operand B. A lane has scores of two tokens and two query rows, and outputs of the
///    same rows; one instruction turns probabilities into the operand of the second product.
///  - If queries do not fit the cache's type, their rounding errors are multiplied too.
///  - The running maximum is raised only when a score exceeds it by more than rescale_threshold. Until then
///    probabilities are at most 2^8, and nothing is rescaled.
///
/// Elements of quantized caches become fp16 when they are loaded to registers (mma_storage.hpp). Scales of tokens are
/// copied with the keys. The weights of value rows are probabilities times scales, and the running maximum bounds these
/// weights.
///
/// If query rows see different tokens, a value that is not finite must not reach the rows that do not see it, and 0
/// times it is NaN. Tiles with such values are multiplied row by row (multiply_visible_values).
///
/// DimTile: a power of two, the largest head dim; dims beyond the actual ones are zeros. AnyQuery: queries of types
/// other than the cache's, and score options. AnyAlignment: rows may begin on any byte and have any length. They are
/// copied as the 16-byte chunks that they touch and shifted into place in scratch (realign).
template <class T, int DimTile, bool AnyQuery = false, bool AnyAlignment = false>
class MmaFragment : public MmaValues<T, DimTile, AnyQuery, AnyAlignment> {
  using Base = MmaValues<T, DimTile, AnyQuery, AnyAlignment>;
  using Base::args_;
  using Base::begin_tiles;
  using Base::block_words;
  using Base::chunks;
  using Base::column_;
  using Base::copy_keys;
  using Base::copy_values;
  using Base::fetch_queries;
  using Base::floating;
  using Base::for_each_value;
  using Base::in_blocks;
  using Base::key_factor;
  using Base::keys_;
  using Base::keys_at_;
  using Base::load_scales;
  using Base::lowered;
  using Base::memory_;
  using Base::multiply_output;
  using Base::multiply_scaled_weights;
  using Base::multiply_value;
  using Base::multiply_visible_values;
  using Base::next_stage;
  using Base::out_;
  using Base::p_;
  using Base::p_rest_;
  using Base::query_bytes;
  using Base::query_chunks;
  using Base::realign;
  using Base::row_;
  using Base::scale_;
  using Base::scales_fit_;
  using Base::scales_weights;
  using Base::stage_;
  using Base::stages;
  using Base::states_at;
  using Base::team_;
  using Base::tile_bytes;
  using Base::turn_ahead;
  using Base::value_scale_;
  using Base::value_stride;
  using Base::values_are_finite;
  using Base::worker_bytes;
  static constexpr float infinity = Kokkos::Experimental::infinity_v<float>;

 public:
  using Base::lane_row;
  using Base::query_type;
  using Base::rows;
  using Base::scaled;
  using Base::tile_tokens;
  using typename Base::ValueOperand;
  template <bool General>
  using Instance = MmaFragment<T, DimTile, General, AnyAlignment>;
  using Acc      = float;
  using typename Base::Member;
  static constexpr bool general_only         = AnyAlignment;  ///< compiled in the general instance only
  static constexpr bool starts_speculatively = true;
  static constexpr bool any_query            = AnyQuery;
  static constexpr int lane_rows             = 2;
  using typename Base::Operand;
  using typename Base::Storage;
  static constexpr DType probability_type = dtype_v<Operand>;
  /// Teams have four warps. Scratch and registers limit how many fit; their copies in flight hide memory latency.
  static constexpr int teams_per_sm = DimTile <= 64 ? 4 : DimTile <= 128 ? 3 : 2;

  static constexpr int many_joined = 16;  ///< states joined at once, limited by registers

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
      : Base(team, args, memory) {}

  /// Starts the copies of the first tiles, then loads the queries from scratch.
  template <class Where>
  KOKKOS_FUNCTION void begin(const Where& where, int u, int step, int end, bool known_pages = false, int page = 0) {
    if constexpr (in_blocks) this->begin_block_scales();
    this->begin_tiles(where, u, step, end, known_pages, page);
    cuda::wait_copies<2 * stages>();
    team_.team_barrier();
    fetch_queries(q_, 0);
  }

  template <class Where>
  KOKKOS_FUNCTION void multiply_keys(const Where& where, int u, int end) {
    this->turn_ahead(where, u, end);
    cuda::wait_copies<2 * stages - 1>();
    cuda::sync_warp();
    if constexpr (AnyAlignment) realign(0);
    if constexpr (in_blocks) {
      const float factor = this->convert_scales();
      if constexpr (scales_weights)
        if (factor != 1.0f) multiply_output(factor);
      cuda::sync_warp();
    }
    float s[2][4] = {};  // even and odd steps have separate sums: shorter chains
    add_key_products(s, q_);
    if constexpr (AnyQuery)
      if (args_.q.type != query_type) {
        std::uint32_t rest[query_chunks];  // rounding errors of the queries, reloaded for each tile to save registers
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
    // Maximum of the weights of value rows: with scales of tokens, the most probable token need not have the largest.
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
        x_[i] = hidden ? hidden_probability : x_[i] * weight(i / 2);
      }
    };
    if (AnyQuery && hides) {
      exponentiate(std::true_type{});
    } else {
      exponentiate(std::false_type{});
    }
    PAGODA_UNROLL_ALL
    for (int i = 0; i < 2; ++i) {
      if (!scales_weights || scales_fit_) {
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
    if (scales_weights && scales_fit_) {
      if constexpr (scales_weights) multiply_scaled_weights();
    } else if (AnyQuery && floating && hides && !values_are_finite()) {
      multiply_visible_values();
    } else {
      for_each_value([&](int o, const std::uint32_t (&a)[4]) {
        multiply_value(out_[o], a);
        // Removes the offset in each tile, so that sums and their rounding errors stay as small as without it.
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
    // Writes to the worker's own part, which no copy uses any more. If a base was never raised, the row has seen no
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
        if constexpr (scales_weights) factor = this->output_unit();
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
  /// s += keys x queries, over the tile's tokens. Even and odd steps of 16 dims have sums of their own.
  KOKKOS_FUNCTION void add_key_products(float (&s)[2][4], const std::uint32_t (&q)[query_chunks]) const {
    constexpr int scale_words = !in_blocks ? 1 : scales_weights ? 2 * block_words : block_words;
    [[maybe_unused]] std::uint32_t scale[2][scale_words];  // scales of the lane's tokens
    if constexpr (in_blocks)
      for (int t = 0; t < 2; ++t) this->load_key_scales(row_ + 8 * t, scale[t]);
    PAGODA_UNROLL_ALL
    for (int i = 0; i < chunks; i += 2) {
      std::uint32_t k[4];  // a chunk of tokens 0 .. 7, of tokens 8 .. 15, then the next chunk
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
  /// The factor of a probability, and its logarithm to base 2, at least -60.
  KOKKOS_FUNCTION float weight(int i) const { return scaled && !in_blocks ? value_scale_[i] : 1.0f; }
  KOKKOS_FUNCTION float weight_log2(int i) const {
    return scaled && !in_blocks ? cuda::log2(greatest(weight(i), 0x1p-60f)) : 0.0f;
  }

  /// Token in the tile of the lane's i-th score.
  KOKKOS_FUNCTION int token_at(int i) const { return row_ + (i >> 1) * 8; }

  std::uint32_t q_[query_chunks];
  float x_[4];  ///< the lane's first token in both rows, then its second
  float base_[2] = {initial_max, initial_max}, sum_[2] = {};
};

}  // namespace pagoda::detail
