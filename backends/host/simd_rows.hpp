// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/types.hpp>

#include "backends/host/simd_vec.hpp"
#include "src/kernel/fragment.hpp"
#include "src/kernel/join.hpp"
#include "src/kernel/rows.hpp"

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace pagoda::detail {

/// The tile of tokens that SimdFragment processes: its scratch memory, the addresses of the rows of keys and
/// values, prefetching, and the scales of tokens and blocks.
template <class Machine, class T, int R>
class SimdRows : public FragmentDefaults<T> {
 public:
  using Acc    = accumulator_t<T>;
  using Member = typename Machine::Member;
  using FragmentDefaults<T>::scaled;
  using FragmentDefaults<T>::block_dims;
  static constexpr int rows  = R;
  static constexpr int width = simd_bytes / int(sizeof(Acc));
  /// A tile of 32 tokens is faster, except if memory limits the kernel (R = 1): it keeps fewer loads in flight.
  static constexpr int tile_tokens = R == 1 ? 16 : 32;
  static constexpr int score_width = width > R ? width : R;
  using Vec                        = SimdVec<Acc, width>;
  using ScoreVec                   = SimdVec<Acc, score_width>;  ///< element j belongs to row j % R

  static constexpr std::size_t scratch_bytes(int head_dim, int head_dim_v, int, int heads) {
    const int elements        = R * (padded(head_dim, width) + padded(head_dim_v, output_width));
    const std::size_t head    = sizeof(Acc) * (elements + 2 * score_width + 2 * R + 2 * scale_tokens);
    const std::size_t offsets = sizeof(Rows) + sizeof(std::int64_t) * (scaled ? 8 : 4) * tile_tokens;
    const std::size_t blocks  = sizeof(Acc) * tile_tokens * (blocks_stride(head_dim) + blocks_stride(head_dim_v));
    return (heads * head + sizeof(Acc) * (R * tile_tokens + score_width) + offsets + blocks + 63) / 64 * 64;
  }

  SimdRows(const Member&, const KernelArgsOf<T>& args, char* memory)
      : args_(args),
        head_dim_(args.head_dim),
        head_dim_v_(args.head_dim_v),
        heads_(args.heads_per_item),
        value_stride_(padded(args.head_dim_v, output_width)),
        k_head_(args.k_head),
        v_head_(args.v_head),
        base_(reinterpret_cast<Acc*>(memory)),
        key_stride_(padded(args.head_dim, width)),
        head_elements_(R * (key_stride_ + value_stride_) + 2 * score_width + 2 * scale_tokens) {
    static_assert(Machine::max_workers == 1, "a worker is alone in its team: nothing is joined at the end");
    if constexpr (paired) pairs_ = args.q.type == DType::bf16;
    s_          = base_ + heads_ * head_elements_;
    correction_ = s_ + R * tile_tokens;
    k_blocks_   = correction_ + score_width;
    v_blocks_   = k_blocks_ + tile_tokens * blocks_stride(head_dim_);
    rows_       = reinterpret_cast<Rows*>(v_blocks_ + tile_tokens * blocks_stride(head_dim_v_));
    k_offset_   = reinterpret_cast<std::int64_t*>(rows_ + 1);
    v_offset_   = k_offset_ + 2 * tile_tokens;
    k_scale_at_ = v_offset_ + 2 * tile_tokens;
    v_scale_at_ = k_scale_at_ + 2 * tile_tokens;
    states_     = reinterpret_cast<RowState<Acc>*>(scaled ? v_scale_at_ + 2 * tile_tokens : k_scale_at_);
    for (int h = 0; h < heads_; ++h) {
      select(h);
      std::fill(o_, o_ + R * value_stride_, Acc(0));
      ScoreVec::all(-infinity).store(max_);
      ScoreVec::all(0).store(sum_);
    }
  }

  /// Selects the head for the following calls.
  void select(int head) {
    head_    = head;
    q_       = base_ + head * head_elements_;
    o_       = q_ + R * key_stride_;
    max_     = o_ + R * value_stride_;
    sum_     = max_ + score_width;
    k_first_ = head * k_head_, v_first_ = head * v_head_;
    k_scale_ = sum_ + score_width, v_scale_ = k_scale_ + scale_tokens;
  }

  /// A whole tile of 32 tokens is processed in a permuted order without repeating strides. With a regular stride
  /// the hardware prefetcher would also fetch rows beyond the page, which the decode does not read.
  static constexpr std::int8_t turns[32]    = {9, 24, 14, 10, 28, 1,  5, 3,  22, 21, 13, 12, 23, 16, 27, 6,
                                               7, 29, 8,  25, 0,  26, 2, 30, 20, 31, 19, 11, 4,  17, 18, 15};
  static constexpr std::int8_t place_of[32] = {20, 5,  22, 7,  28, 6, 15, 16, 18, 0,  3,  27, 11, 10, 2,  31,
                                               13, 29, 30, 26, 24, 9, 8,  12, 1,  19, 21, 14, 4,  17, 23, 25};
  /// turn: the token that is processed n-th of `count`. place_in_turn: the inverse.
  static int turn(int n, int count) { return count == 32 ? turns[n] : n; }
  static int place_in_turn(int token, int count) { return count == 32 ? place_of[token] : token; }

  /// Computes where the rows of the tile from token u on lie, and those of the next tile. The tiles of an item come
  /// in order, so each tile is located only once.
  template <class Where>
  void locate(const Where& where, int u, int end) {
    const int count = std::min(tile_tokens, end - u);
    int known       = 0;
    if (next_ > 0) {
      std::copy_n(k_offset_ + tile_tokens, next_, k_offset_);
      std::copy_n(v_offset_ + tile_tokens, next_, v_offset_);
      if constexpr (scaled) {
        std::copy_n(k_scale_at_ + tile_tokens, next_, k_scale_at_);
        std::copy_n(v_scale_at_ + tile_tokens, next_, v_scale_at_);
      }
      known = tile_tokens;
    }
    next_ = std::clamp(end - u - tile_tokens, 0, tile_tokens);
    for (int n = known; n < count + next_; ++n) {
      const PagePlace place =
          where.place(u + (n < tile_tokens ? turn(n, count) : tile_tokens + turn(n - tile_tokens, next_)));
      const TokenRow row = where.row(place);
      k_offset_[n] = row.k, v_offset_[n] = row.v;
      if constexpr (scaled) {
        k_scale_at_[n] = locate_scale(k_scales(), place, where.kv_head);
        v_scale_at_[n] = locate_scale(v_scales(), place, where.kv_head);
      }
    }
    for (int n = count; n < tile_tokens && next_ == 0; ++n) {
      k_offset_[n] = k_offset_[count - 1], v_offset_[n] = v_offset_[count - 1];  // read, but not used
    }
    if constexpr (scaled) {
      const int first = R * (key_stride_ + value_stride_) + 2 * score_width;
      load_scales(args_.k_scale, k_scale_at_, count, base_ + first);
      load_scales(args_.v_scale, v_scale_at_, count, base_ + first + scale_tokens);
    }
    count_        = count;
    coming_token_ = 0, coming_head_ = 0;
  }

 protected:
  static constexpr Acc infinity = Kokkos::Experimental::infinity_v<Acc>;
  /// A vector of scores covers vector_tokens tokens and vector_rows rows.
  static constexpr int vector_rows   = R < width ? R : width;
  static constexpr int vector_tokens = width / vector_rows;
  /// Units of partial sums in a vector of scores.
  static constexpr int units       = simd_registers >= 32 && width >= 8 ? 2 : 1;
  static constexpr int unit        = width / units;
  static constexpr int unit_rows   = std::min(vector_rows, units > 1 ? 4 : width);
  static constexpr int unit_tokens = unit / unit_rows;
  static constexpr int per_element = dims_per_element_v<T>;
  static constexpr int line_dims   = 64 / int(sizeof(T)) * per_element;  ///< dims in a cache line
  static_assert(tile_tokens % vector_tokens == 0, "a tile is whole vectors of scores");
  /// Keys and queries are multiplied by pairs of bfloat16. These queries are stored unscaled, and the scores are
  /// scaled.
#if defined(__AVX512BF16__)
  static constexpr bool paired = std::is_same_v<T, bfloat16_t> && std::is_same_v<Acc, float>;
#else
  static constexpr bool paired = false;
#endif
  /// Half of the registers hold sums, the other half operands.
  static constexpr int value_block = std::max(1, std::min(8, simd_registers / 2 / R));

  static constexpr int scale_tokens = scaled ? tile_tokens : 0;
  static constexpr int output_width = std::max(width, 4);  ///< states are joined in quads

  static_assert(block_dims % width == 0, "a vector has dims of one block alone");
  /// Converted block scales of a row, padded to whole vectors.
  static constexpr int blocks_stride(int dims) {
    return block_dims > 0 ? padded(blocks_of(dtype_v<T>, dims), width) : 0;
  }

  int vectors() const { return (count_ * R + score_width - 1) / score_width; }

  /// The rows of the tile for the selected head, then the rows to prefetch while the head is processed.
  struct Rows {
    const T *key[2 * tile_tokens], *value[2 * tile_tokens];
  };

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
      for (int l = 0; l < Dims; l += line_dims) Machine::prefetch_line(row + l / per_element);
    } else {
      if (d % line_dims == 0) Machine::prefetch_line(row);
    }
  }

  /// Computes the offset of a token's scale for the item's first head, and prefetches it. Also prefetches the last
  /// head's scale: in most caches the scales of different heads are far apart.
  std::int64_t locate_scale(const ScaleArray& scale, const PagePlace& place, int kv_head) const {
    if (!scale.per_token()) return 0;
    const std::int64_t at = scale.offset(place.page, place.slot) + std::int64_t(kv_head) * scale.head;
    Machine::prefetch_line(scale.at + at);
    Machine::prefetch_line(scale.at + at + std::int64_t(heads_ - 1) * scale.head);
    return at;
  }

  /// Computes the offset of a row's block scales, and prefetches them.
  std::int64_t locate_scale(const BlockScaleArray& scales, const PagePlace& place, int kv_head) const {
    const std::int64_t at   = scales.offset(place.page, place.slot, kv_head);
    const auto* const first = static_cast<const char*>(scales.at) + at;
    Machine::prefetch_line(first);
    Machine::prefetch_line(first + std::int64_t(heads_ - 1) * scales.head);
    return at;
  }
  /// The scales that locate_scale takes for this type.
  const auto& k_scales() const {
    if constexpr (block_dims > 0) {
      return args_.k_blocks;
    } else {
      return args_.k_scale;
    }
  }
  const auto& v_scales() const {
    if constexpr (block_dims > 0) {
      return args_.v_blocks;
    } else {
      return args_.v_scale;
    }
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

  /// Loads the scales of the tile's tokens for all heads. to: destination of the first head's scales.
  void load_scales(const ScaleArray& scale, const std::int64_t* at, int count, Acc* to) const {
    if (!scale.per_token()) return;
    for (int n = 0; n < count; ++n)
      for (int h = 0; h < heads_; ++h) to[h * head_elements_ + n] = scale.of_token(at[n], h);
  }

  const KernelArgsOf<T>& args_;
  int head_dim_, head_dim_v_, count_ = 0;
  int next_ = 0;          ///< tokens of the next tile whose rows are located
  int heads_, head_ = 0;  ///< number of heads, and the selected one
  bool pairs_ = false;    ///< queries are stored as pairs of bfloat16
  Acc scale_  = 1;
  int value_stride_;  ///< elements of a row of o_
  std::int64_t k_head_, v_head_;
  std::int64_t k_first_ = 0, v_first_ = 0;  ///< offset of the selected head's rows from the first head's
  int coming_token_ = 0, coming_head_ = 0;  ///< next row to prefetch, in the next tile
  Acc* base_;
  Acc* q_;                     ///< [R][key_stride], of the selected head; zeros beyond head_dim
  Acc* o_;                     ///< [R][value_stride], of the selected head
  Acc *max_, *sum_;            ///< [score_width], of the selected head
  Acc *k_scale_, *v_scale_;    ///< [tile_tokens], of the selected head; quantized types only
  Acc* s_;                     ///< [tile_tokens][R]
  Acc* correction_;            ///< [score_width]
  Acc *k_blocks_, *v_blocks_;  ///< [tile_tokens][blocks_stride], of the selected head; only with block scales
  Rows* rows_;
  std::int64_t *k_offset_, *v_offset_;      ///< [2][tile_tokens]: this tile, then the next
  std::int64_t *k_scale_at_, *v_scale_at_;  ///< offsets of scales in the same order; quantized types only
  RowState<Acc>* states_;                   ///< [heads][R]
  // Last, so that the members that loops read have small offsets, which keeps their code short.
  int key_stride_;                ///< elements of a row of q_
  int head_elements_;             ///< elements of scratch memory for each head
  std::uint32_t hidden_[R] = {};  ///< for each row: a bit for each token in the order of s_, set if hidden
};

}  // namespace pagoda::detail
