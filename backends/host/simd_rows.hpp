// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/row_formats.hpp>
#include <pagoda/types.hpp>

#include "backends/host/isa.hpp"
#include "backends/host/simd_output.hpp"
#include "backends/host/simd_query.hpp"
#include "backends/host/simd_tile.hpp"
#include "backends/host/simd_vec.hpp"

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

PAGODA_ISA_BEGIN
namespace pagoda::detail::PAGODA_ISA {

/// Rows of SimdProducts: queries and outputs, which it converts; the addresses of keys and values, and their
/// prefetches; block scales. Also the shapes of its vectors.
template <class T, int R>
class SimdRows : public SimdTile<T, R> {
  using Base = SimdTile<T, R>;

 public:
  using Base::block_dims;
  using Base::tile_tokens;
  using typename Base::Acc;
  static constexpr int width       = simd_bytes / int(sizeof(Acc));
  static constexpr int score_width = width > R ? width : R;
  using Vec                        = SimdVec<Acc, width>;
  using ScoreVec                   = SimdVec<Acc, score_width>;  ///< element j belongs to row j % R

  SimdRows(const KernelArgsOf<T>& args, char* memory) : Base(args, memory) {
    if constexpr (paired) pairs_ = args.q.type == DType::bf16;
  }

  void load_query(int r, const QueryRow& row, Acc scale) override {
    *factor_ = scale;
    if constexpr (paired) {
      if (pairs_) {
        constexpr int length = 2 * width;  // dims in a vector of queries
        for (int d = 0; d < head_dim_; d += length) {
          const int count      = std::min(length, head_dim_ - d);
          bfloat16_t x[length] = {};  // zeros beyond the last dim
          if (row.data && row.stride == 1) {
            copy_part(static_cast<const bfloat16_t*>(row.data) + row.at + d, count, x);
          } else if (row.data) {
            for (int i = 0; i < count; ++i)
              x[i] = static_cast<const bfloat16_t*>(row.data)[row.at + (d + i) * row.stride];
          }
          store_pairs(x, q_ + (d / length * R + r) * width);
        }
        return;
      }
    }
    load_query_row<Vec, width>(row, head_dim_, scale,
                               [&](int d, const Vec& x) PAGODA_ISA_CODE { x.store(q_ + (d * R + r * width)); });
  }

  void store_row(const StateArray<Acc>& from, int n, int r, Acc factor, const OutputRow& to) const override {
    PAGODA_ISA::store_row(from, n, r, factor, head_dim_v_, to);
  }

 protected:
  ~SimdRows() = default;

  using Base::args_;
  using Base::blocks_stride;
  using Base::coming_head_;
  using Base::coming_token_;
  using Base::count_;
  using Base::factor_;
  using Base::head_;
  using Base::head_dim_;
  using Base::head_dim_v_;
  using Base::heads_;
  using Base::infinity;
  using Base::k_first_;
  using Base::k_head_;
  using Base::k_offset_;
  using Base::next_;
  using Base::pairs_;
  using Base::per_element;
  using Base::place_in_turn;
  using Base::q_;
  using Base::rows_;
  using Base::v_first_;
  using Base::v_head_;
  using Base::v_offset_;
  using typename Base::Rows;

  /// A vector of scores covers vector_tokens tokens and vector_rows rows.
  static constexpr int vector_rows   = R < width ? R : width;
  static constexpr int vector_tokens = width / vector_rows;
  /// Units of partial sums in a vector of scores.
  static constexpr int units = simd_registers >= 32 && width >= 8 ? 2 : 1;
  static constexpr int unit  = width / units;
  /// Rows and tokens of a unit. The dims of a token are converted once for each unit that has it.
  static constexpr int unit_rows(bool pairs) {
    return std::min(vector_rows, units == 1 ? width : pairs && is_quantized_v<T> ? 8 : 4);
  }
  static constexpr int unit_tokens(bool pairs) { return unit / unit_rows(pairs); }
  static constexpr int line_dims = 64 / int(sizeof(T)) * per_element;  ///< dims in a cache line
  static_assert(tile_tokens % vector_tokens == 0, "a tile is whole vectors of scores");
  static_assert(block_dims % width == 0, "a vector has dims of one block alone");
  /// Keys and queries are multiplied by pairs of bfloat16. These queries are stored unscaled, and the scores are
  /// scaled.
#if defined(PAGODA_ISA_PAIRS)
  static constexpr bool paired = std::is_same_v<T, bfloat16_t> || (has_bf16_code<T> && R > 1 && !Base::by_bytes);
#else
  static constexpr bool paired = false;
#endif
  /// Half of the registers hold sums, the other half operands.
  static constexpr int value_block = std::max(1, std::min(8, simd_registers / 2 / R));

  int vectors() const { return (count_ * R + score_width - 1) / score_width; }

  /// Collects the selected head's rows and the next tile_tokens rows to prefetch. Rows are prefetched in memory
  /// order: all heads of a token, then the next token. If fewer rows are left, the first row of the tile fills the
  /// list.
  void line_up() {
    const T* const k     = static_cast<const T*>(args_.k);
    const T* const v     = static_cast<const T*>(args_.v);
    const T **const keys = rows_->key, **const values = rows_->value;
    for (int n = 0; n < tile_tokens; ++n) keys[n] = k + (k_first_ + k_offset_[n]);
    for (int n = 0; n < tile_tokens; ++n) values[n] = v + (v_first_ + v_offset_[n]);

    const int heads = heads_, left = (next_ - coming_token_) * heads - coming_head_;
    const int end = tile_tokens + (next_ > 0 ? std::min(left, tile_tokens) : 0);
    int head      = coming_head_;
    for (int n = tile_tokens; n < end;) {
      const int place   = tile_tokens + place_in_turn(coming_token_, next_);
      const T* key      = k + (k_offset_[place] + head * k_head_);
      const T* value    = v + (v_offset_[place] + head * v_head_);
      const int run_end = std::min(end, n + heads - head);
      head += run_end - n;
      for (; n < run_end; ++n, key += k_head_, value += v_head_) keys[n] = key, values[n] = value;
      if (head == heads) head = 0, ++coming_token_;
    }
    coming_head_ = head;
    std::fill(keys + end, keys + 2 * tile_tokens, keys[0]);
    std::fill(values + end, values + 2 * tile_tokens, values[0]);
  }

  /// Prefetches the cache lines that begin within dims d .. d + Dims of a row.
  template <int Dims>
  [[gnu::always_inline]] static void prefetch_dims(const T* row, int d) {
    if constexpr (Dims >= line_dims) {
      for (int l = 0; l < Dims; l += line_dims) prefetch_line(row + l / per_element);
    } else {
      if (d % line_dims == 0) prefetch_line(row);
    }
  }

  /// For rows with a format of their own: the byte of a row whose cache line is prefetched beside dim d; -1: none. The
  /// bytes behind the scaled dims are more than a line.
  static int line_beside(int d) {
    constexpr int scaled_dims = RowPlaces<T>::scaled_dims, bytes = row_format_of(dtype_v<T>).bytes;
    if (d < scaled_dims) return d % line_dims == 0 ? d : -1;
    const int at = scaled_dims + 4 * (d - scaled_dims);
    return at % line_dims == 0 && at < bytes ? at : -1;
  }

  /// Converts the block scales of the tile's tokens, for the selected head, to floats. Rows behind the last token
  /// repeat its scales; their scores are not used.
  void convert_blocks(const BlockScaleArray& scales, const std::int64_t* at, int dims, Acc* to) const {
    using Scale      = block_scale_t<T>;
    const int blocks = blocks_of(dtype_v<T>, dims), stride = blocks_stride(dims);
    for (int n = 0; n < tile_tokens; ++n, to += stride) {
      const std::int64_t row  = at[std::min(n, count_ - 1)] + std::int64_t(head_) * scales.head;
      const auto* const first = static_cast<const Scale*>(scales.at) + row;
      if constexpr (Element<Scale>) {
        if (scales.block == 1) {
          for (int b = 0; b < blocks; b += width) Vec::load_part(first + b, std::min(width, blocks - b)).store(to + b);
          continue;
        }
      }
      for (int b = 0; b < blocks; ++b) to[b] = static_cast<Acc>(first[b * std::int64_t(scales.block)]);
    }
  }

 private:
  /// Stores a vector of queries in the order of SimdVec::load_pairs.
  static void store_pairs([[maybe_unused]] const bfloat16_t (&x)[2 * width], [[maybe_unused]] Acc* to) {
#if defined(PAGODA_ISA_PAIRS)
    if constexpr (std::is_same_v<T, bfloat16_t>) {
      std::memcpy(static_cast<void*>(to), x, sizeof(x));
    } else {
      const auto* const halves = reinterpret_cast<const __m256i*>(x);
      const __m512i pairs      = pairs_of(_mm256_loadu_si256(halves), _mm256_loadu_si256(halves + 1));
      std::memcpy(static_cast<void*>(to), &pairs, sizeof(pairs));
    }
#endif
  }
};

}  // namespace pagoda::detail::PAGODA_ISA
PAGODA_ISA_END
