// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/mma_softmax.hpp"
#include "backends/cuda/mma_storage.hpp"
#include "backends/cuda/primitives.hpp"
#include "src/base/arithmetic.hpp"
#include "src/base/unroll.hpp"
#include "src/kernel/fragment.hpp"
#include "src/kernel/join.hpp"
#include "src/kernel/rows.hpp"

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
class MmaFragment : public MmaSoftmax<T, DimTile, AnyQuery, AnyAlignment> {
  using Base = MmaSoftmax<T, DimTile, AnyQuery, AnyAlignment>;
  using Base::args_;
  using Base::base_;
  using Base::begin_tiles;
  using Base::block_words;
  using Base::chunks;
  using Base::column_;
  using Base::copy_keys;
  using Base::copy_values;
  using Base::exceeds_base;
  using Base::exponentiate;
  using Base::fetch_queries;
  using Base::floating;
  using Base::for_each_value;
  using Base::in_blocks;
  using Base::infinity;
  using Base::key_factor;
  using Base::keys_;
  using Base::keys_at_;
  using Base::largest_weights;
  using Base::load_scales;
  using Base::lowered;
  using Base::memory_;
  using Base::multiply_output;
  using Base::multiply_prepared;
  using Base::multiply_value;
  using Base::multiply_visible_values;
  using Base::next_stage;
  using Base::out_;
  using Base::p_;
  using Base::p_rest_;
  using Base::prepare_values;
  using Base::query_bytes;
  using Base::query_chunks;
  using Base::raise_base;
  using Base::realign;
  using Base::row_;
  using Base::scale_;
  using Base::scales_fit_;
  using Base::scales_weights;
  using Base::stage_;
  using Base::stages;
  using Base::states_at;
  using Base::sum_;
  using Base::team_;
  using Base::tile_bytes;
  using Base::turn_ahead;
  using Base::value_stride;
  using Base::values_are_finite;
  using Base::worker_bytes;
  using Base::x_;
  /// Values are converted before the scores are known, if registers suffice.
  static constexpr bool prepares_values = in_blocks && !AnyQuery && !AnyAlignment && DimTile <= 128;

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
    team_.team_barrier();  // the queries have arrived, before any warp reads them
    fetch_queries(q_, 0);
  }

  template <class Where>
  KOKKOS_FUNCTION void multiply_keys(const Where& where, int u, int end) {
    if constexpr (in_blocks) return multiply_keys_in_blocks(u, end);
    this->turn_ahead(where, u, end);
    cuda::wait_copies<2 * stages - 1>();
    cuda::sync_warp();
    if constexpr (AnyAlignment) realign(0);
    float s[2][4] = {};  // even and odd steps have separate sums: shorter chains
    add_key_products(s, q_);
    if constexpr (AnyQuery)
      if (args_.q.type != query_type) {
        std::uint32_t rest[query_chunks];  // rounding errors of the queries, reloaded for each tile to save registers
        fetch_queries(rest, query_bytes);
        add_key_products(s, rest);
      }
    [[maybe_unused]] float key_scale[2] = {1, 1};
    if constexpr (scaled) load_scales(key_scale);
    cuda::sync_warp();
    copy_keys();
    PAGODA_UNROLL_ALL
    for (int i = 0; i < 4; ++i)
      x_[i] = token_at(i) < end - u ? (s[0][i] + s[1][i]) * (scale_ * key_factor * key_scale[i / 2]) : -infinity;
  }

  template <class Change>
  KOKKOS_FUNCTION void for_each_score(int count, const Change& change) {
    PAGODA_UNROLL_ALL
    for (int i = 0; i < 4; ++i)
      if (token_at(i) < count) change(i % 2, token_at(i), x_[i]);
  }

  KOKKOS_FUNCTION void softmax(bool hides) {
    if constexpr (in_blocks) return;  // see multiply_values_in_blocks
#if defined(__CUDA_ARCH__)
    float most[2];
    largest_weights(most);
    if (cuda::any_lane(exceeds_base(most))) raise_base(most);
    exponentiate(hides);
    PAGODA_UNROLL_ALL
    for (int i = 0; i < 2; ++i) p_[i] = cuda::transpose(cuda::pack<Operand>(x_[2 * i], x_[2 * i + 1]));
#endif
  }

  template <class Where>
  KOKKOS_FUNCTION void multiply_values(const Where& where, int u, int end, bool hides) {
    if constexpr (in_blocks) return multiply_values_in_blocks(where, u, end, hides);
    cuda::wait_copies<2 * stages - 1>();
    cuda::sync_warp();
    if constexpr (AnyAlignment) realign(tile_bytes);
    if (AnyQuery && floating && hides && !values_are_finite()) {
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
    team_.team_barrier();  // the states of all warps are written, before they are joined
#endif
    return {reinterpret_cast<RowState<float>*>(memory_ + states_at), reinterpret_cast<float*>(memory_), value_stride,
            worker_bytes / static_cast<int>(sizeof(RowState<float>)), worker_bytes / static_cast<int>(sizeof(float))};
  }

 private:
  /// s += keys x queries, over the tile's tokens. Even and odd steps of 16 dims have sums of their own.
  KOKKOS_FUNCTION void add_key_products(float (&s)[2][4], const std::uint32_t (&q)[query_chunks]) const {
    PAGODA_UNROLL_ALL
    for (int i = 0; i < chunks; i += 2) {
      std::uint32_t k[4];  // a chunk of tokens 0 .. 7, of tokens 8 .. 15, then the next chunk
      cuda::load_matrices<false>(k, (keys_at_ ^ (i << 4)) + stage_);
      if constexpr (scaled) {
        PAGODA_UNROLL_ALL
        for (int j = 0; j < 2; ++j) {
          std::uint32_t a[Storage::steps][4];
          Storage::keys(k[2 * j], k[2 * j + 1], a);
          PAGODA_UNROLL_ALL
          for (int step = 0; step < Storage::steps; ++step) multiply(s, q, Storage::steps * (i + j) + step, a[step]);
        }
      } else {
        multiply(s, q, i / 2, k);
      }
    }
  }

  /// Keys of caches with block scales. A tile's keys, values and scales are waited for once and copied together, and
  /// the softmax follows the conversion of the values: what does not depend on the scores hides the latency of what
  /// does.
  KOKKOS_FUNCTION void multiply_keys_in_blocks(int u, int end) {
    cuda::wait_copies<2 * stages - 2>();
    cuda::sync_warp();
    if constexpr (AnyAlignment) realign(0), realign(tile_bytes);
    this->turn_ahead_together(u, end);
    std::uint32_t k[chunks / 2][4];
    PAGODA_UNROLL_ALL
    for (int i = 0; i < chunks / 2; ++i) cuda::load_matrices<false>(k[i], (keys_at_ ^ (i << 5)) + stage_);
    // Sums of the products of each block without scales; or of even and odd steps with them.
    float s[scales_weights ? chunks : 2][4] = {};
    if constexpr (!scales_weights) {
      scales_in_range_ = this->convert_scales();
      cuda::sync_warp();
    }
    add_block_products(s, k, q_);
    if constexpr (AnyQuery)
      if (args_.q.type != query_type) {
        std::uint32_t rest[query_chunks];
        fetch_queries(rest, query_bytes);
        add_block_products(s, k, rest);
      }
    if constexpr (scales_weights) {
      scales_in_range_ = this->convert_scales();
      cuda::sync_warp();
      std::uint32_t scale[2][2 * block_words];
      for (int t = 0; t < 2; ++t) this->load_key_scales(row_ + 8 * t, scale[t]);
      PAGODA_UNROLL_ALL
      for (int e = 0; e < 4; ++e) s[0][e] *= Storage::template key_scale<block_words>(scale[e / 2], 0);
      PAGODA_UNROLL_ALL
      for (int i = 1; i < chunks; ++i)
        for (int e = 0; e < 4; ++e) s[0][e] += s[i][e] * Storage::template key_scale<block_words>(scale[e / 2], i);
    }
    if constexpr (prepares_values) prepare_values(prepared_);
    PAGODA_UNROLL_ALL
    for (int i = 0; i < 4; ++i) {
      const float sum = scales_weights ? s[0][i] : s[0][i] + s[1][i];
      x_[i]           = token_at(i) < end - u ? sum * (scale_ * key_factor) : -infinity;
    }
  }
  /// Adds products of the keys in k. For scales_weights each chunk, which is one block, has a sum of its own.
  template <int Sums>
  KOKKOS_FUNCTION void add_block_products(float (&s)[Sums][4], const std::uint32_t (&k)[chunks / 2][4],
                                          const std::uint32_t (&q)[query_chunks]) const {
    [[maybe_unused]] std::uint32_t scale[2][block_words];
    if constexpr (!scales_weights)
      for (int t = 0; t < 2; ++t) this->load_key_scales(row_ + 8 * t, scale[t]);
    PAGODA_UNROLL_ALL
    for (int i = 0; i < chunks; ++i) {
      std::uint32_t a[Storage::steps][4];
      Storage::keys(k[i / 2][i % 2 * 2], k[i / 2][i % 2 * 2 + 1], a);
      if constexpr (!scales_weights) {
        if (i % 2 == 0) {
          Storage::template scale_keys<0>(a, scale[0][i / 2], scale[1][i / 2]);
        } else {
          Storage::template scale_keys<1>(a, scale[0][i / 2], scale[1][i / 2]);
        }
      }
      PAGODA_UNROLL_ALL
      for (int step = 0; step < Storage::steps; ++step) {
        const int n = Storage::steps * i + step;
        cuda::mma<Operand>(s[scales_weights ? i : step], a[step][0], a[step][1], a[step][2], a[step][3], q[2 * n],
                           q[2 * n + 1]);
      }
    }
  }

  /// The softmax, then the values, of caches with block scales.
  template <class Where>
  KOKKOS_FUNCTION void multiply_values_in_blocks(const Where& where, int u, int end, bool hides) {
    float most[2];
    largest_weights(most);
    if (cuda::any_lane(exceeds_base(most) || !scales_in_range_)) {
      if (cuda::any_lane(exceeds_base(most))) raise_base(most);
      if constexpr (scales_weights) {
        if (cuda::any_lane(!scales_in_range_)) {
          multiply_output(this->fit_scales());
          if constexpr (prepares_values) this->load_weight_scales(prepared_);
        }
        exponentiate(hides);
        if (cuda::any_lane(!scales_fit_)) {
          multiply_wide_values(hides);
        } else {
          multiply_weights(hides);
        }
      }
    } else if constexpr (scales_weights) {  // apart from the rare case, whose branches would be here otherwise
      exponentiate(hides);
      multiply_weights(hides);
    }
    if constexpr (!scales_weights) {
      exponentiate(hides);
      multiply_weights(hides);
    }
    cuda::sync_warp();
    this->copy_together(where, u, end);
    next_stage();
  }
  KOKKOS_FUNCTION void multiply_weights([[maybe_unused]] bool hides) {
    PAGODA_UNROLL_ALL
    for (int i = 0; i < 2; ++i) p_[i] = cuda::transpose(cuda::pack<Operand>(x_[2 * i], x_[2 * i + 1]));
    if constexpr (prepares_values) {
      multiply_prepared(prepared_);
    } else if (!scales_weights && AnyQuery && hides && !values_are_finite()) {
      multiply_visible_values();
    } else {
      typename Base::Prepared prepared;
      prepare_values(prepared);
      multiply_prepared(prepared);
    }
  }
  /// Values whose scales are too far apart are multiplied by their scales, and probabilities are split.
  KOKKOS_FUNCTION void multiply_wide_values(bool hides) {
    PAGODA_UNROLL_ALL
    for (int i = 0; i < 2; ++i) {
      const std::uint32_t word = cuda::pack<ValueOperand>(x_[2 * i], x_[2 * i + 1]);
      float low, high;
      cuda::unpack<ValueOperand>(word, low, high);
      p_[i]      = cuda::transpose(word);
      p_rest_[i] = cuda::transpose(cuda::pack<ValueOperand>(x_[2 * i] - low, x_[2 * i + 1] - high));
    }
    if (AnyQuery && hides && !values_are_finite()) return multiply_visible_values();
    for_each_value([&](int o, const std::uint32_t (&a)[4]) { multiply_value(out_[o], a); });
  }

  /// s[step % 2] += keys x queries over the 16 dims of a step.
  KOKKOS_FUNCTION static void multiply(float (&s)[2][4], const std::uint32_t (&q)[query_chunks], int step,
                                       const std::uint32_t (&a)[4]) {
    cuda::mma<Operand>(s[step % 2], a[0], a[1], a[2], a[3], q[2 * step], q[2 * step + 1]);
  }
  /// Token in the tile of the lane's i-th score.
  KOKKOS_FUNCTION int token_at(int i) const { return row_ + (i >> 1) * 8; }

  std::uint32_t q_[query_chunks];
  bool scales_in_range_ = true;  ///< the lane's block scales of the tile
  std::conditional_t<prepares_values, typename Base::Prepared, std::monostate> prepared_;
};

}  // namespace pagoda::detail
