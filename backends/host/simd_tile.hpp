// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/types.hpp>

#include "src/kernel/fragment.hpp"
#include "src/kernel/join.hpp"
#include "src/kernel/rows.hpp"

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace pagoda::detail {

/// Prefetches into the second-level cache. The first-level cache has few miss registers, and loads would wait for
/// them. Always inlined: GCC removes calls of a function that only prefetches.
[[gnu::always_inline]] inline void prefetch_line(const void* line) { __builtin_prefetch(line, 0, 2); }
[[gnu::always_inline]] inline void prefetch_near(const void* line) { __builtin_prefetch(line, 0, 3); }

/// The tile of tokens that SimdFragment processes: its scratch memory and the offsets of its rows. The kernel is
/// compiled once, and calls the virtual functions for a whole tile. SimdProducts implements them for each instruction
/// set. The layout of the memory is the same for all: rows and arrays of scores are padded to the widest vector.
template <class T, int R>
class SimdTile : public FragmentDefaults<T> {
 public:
  using Acc = accumulator_t<T>;
  using FragmentDefaults<T>::scaled;
  using FragmentDefaults<T>::block_dims;
  static constexpr int rows = R;
  /// A tile of 32 tokens is faster, except if memory limits the kernel (R = 1): it keeps fewer loads in flight.
  static constexpr int tile_tokens = R == 1 ? 16 : 32;
  static constexpr int max_width   = 64 / int(sizeof(Acc));  ///< elements of the widest vector
  /// Keys and values may be multiplied as bytes: SimdByteKeys, SimdByteValues. One row is faster without.
  static constexpr bool by_bytes = R > 1 && (std::is_same_v<T, std::int8_t> || std::is_same_v<T, int4x2_t>);

  /// Scores of the selected head for the tokens that locate has found.
  virtual void multiply_keys() = 0;
  /// The same as in PortableFragment, with vectors throughout.
  virtual void softmax(bool hides)         = 0;
  virtual void multiply_values(bool hides) = 0;
  /// Stores query row r of the selected head, multiplied by scale.
  virtual void load_query(int r, const QueryRow& row, Acc scale) = 0;
  /// States of all heads.
  virtual StateArray<Acc> finish() = 0;
  /// Adds the values of n states of row r, each times its weight (join_row_states), and stores the sum times factor.
  virtual void store_row(const StateArray<Acc>& from, int n, int r, Acc factor, const OutputRow& to) const = 0;

  static constexpr std::size_t scratch_bytes(int head_dim, int head_dim_v, int heads) {
    const int elements = R * (padded(head_dim, max_width) + padded(head_dim_v, max_width));
    const int digits   = query_digits(head_dim);
    const std::size_t head =
        sizeof(Acc) * (elements + 2 * max_score_width + 2 * R + max_width + 2 * scale_tokens + digits);
    const std::size_t offsets = sizeof(Rows) + sizeof(std::int64_t) * (scaled ? 8 : 4) * tile_tokens;
    const std::size_t blocks  = sizeof(Acc) * tile_tokens * (blocks_stride(head_dim) + blocks_stride(head_dim_v));
    const std::size_t bytes   = operand_bytes(head_dim, head_dim_v) + sizeof(Acc) * probability_digits;
    return (heads * head + sizeof(Acc) * (R * tile_tokens + max_score_width) + offsets + blocks + bytes + 63) / 64 * 64;
  }

  /// memory: scratch_bytes.
  SimdTile(const KernelArgsOf<T>& args, char* memory)
      : args_(args),
        head_dim_(args.head_dim),
        head_dim_v_(args.head_dim_v),
        heads_(args.heads_per_item),
        value_stride_(padded(args.head_dim_v, max_width)),
        k_head_(args.k_head),
        v_head_(args.v_head),
        base_(reinterpret_cast<Acc*>(memory)),
        key_stride_(padded(args.head_dim, max_width)),
        head_elements_(R * (key_stride_ + value_stride_) + 2 * max_score_width + max_width + 2 * scale_tokens +
                       query_digits(args.head_dim)) {
    s_          = base_ + heads_ * head_elements_;
    correction_ = s_ + R * tile_tokens;
    k_blocks_   = correction_ + max_score_width;
    v_blocks_   = k_blocks_ + tile_tokens * blocks_stride(head_dim_);
    bytes_      = reinterpret_cast<std::int8_t*>(v_blocks_ + tile_tokens * blocks_stride(head_dim_v_));
    digits_     = reinterpret_cast<std::uint32_t*>(bytes_ + operand_bytes(head_dim_, head_dim_v_));
    rows_       = reinterpret_cast<Rows*>(digits_ + probability_digits);
    k_offset_   = reinterpret_cast<std::int64_t*>(rows_ + 1);
    v_offset_   = k_offset_ + 2 * tile_tokens;
    k_scale_at_ = v_offset_ + 2 * tile_tokens;
    v_scale_at_ = k_scale_at_ + 2 * tile_tokens;
    states_     = reinterpret_cast<RowState<Acc>*>(scaled ? v_scale_at_ + 2 * tile_tokens : k_scale_at_);
    for (int h = 0; h < heads_; ++h) {
      select(h);
      std::fill(o_, o_ + R * value_stride_, Acc(0));
      std::fill(max_, max_ + max_score_width, -infinity);
      std::fill(sum_, sum_ + max_score_width, Acc(0));
    }
  }

  /// Selects the head for the following calls.
  void select(int head) {
    head_    = head;
    q_       = base_ + head * head_elements_;
    o_       = q_ + R * key_stride_;
    max_     = o_ + R * value_stride_;
    sum_     = max_ + max_score_width;
    k_first_ = head * k_head_, v_first_ = head * v_head_;
    factor_  = sum_ + max_score_width;
    k_scale_ = factor_ + max_width, v_scale_ = k_scale_ + scale_tokens;
    q_digits_ = reinterpret_cast<std::int32_t*>(v_scale_ + scale_tokens);
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

  template <class Change>
  void for_each_score(int count, const Change& change) {
    for (int n = 0; n < count; ++n)
      for (int r = 0; r < R; ++r) change(r, turn(n, count), s_[n * R + r]);
  }

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
      const int first = R * (key_stride_ + value_stride_) + 2 * max_score_width + max_width;
      load_scales(args_.k_scale, k_scale_at_, count, base_ + first);
      load_scales(args_.v_scale, v_scale_at_, count, base_ + first + scale_tokens);
    }
    count_        = count;
    coming_token_ = 0, coming_head_ = 0;
  }

 protected:
  ~SimdTile() = default;

  static constexpr Acc infinity        = Kokkos::Experimental::infinity_v<Acc>;
  static constexpr int max_score_width = max_width > R ? max_width : R;
  static constexpr int scale_tokens    = scaled ? tile_tokens : 0;
  static constexpr int per_element     = dims_per_element_v<T>;

  /// Converted block scales of a row, padded to whole vectors.
  static constexpr int blocks_stride(int dims) {
    return block_dims > 0 ? padded(blocks_of(dtype_v<T>, dims), max_width) : 0;
  }

  static constexpr int byte_stride(int dims) { return by_bytes ? padded(dims, 64) : 0; }
  static constexpr int operand_bytes(int head_dim, int head_dim_v) {
    return tile_tokens * byte_stride(head_dim > head_dim_v ? head_dim : head_dim_v);
  }
  static constexpr int query_digits(int head_dim) {
    return by_bytes ? 3 * R * byte_stride(head_dim) / 4 + padded(4 * R, 16) : 0;
  }
  static constexpr int probability_digits = by_bytes ? R * tile_tokens / 2 + 16 : 0;

  /// The rows of the tile for the selected head, then the rows to prefetch while the head is processed.
  struct Rows {
    const T *key[2 * tile_tokens], *value[2 * tile_tokens];
  };

  /// Computes the offset of a token's scale for the item's first head, and prefetches it. Also prefetches the last
  /// head's scale: in most caches the scales of different heads are far apart.
  std::int64_t locate_scale(const ScaleArray& scale, const PagePlace& place, int kv_head) const {
    if (!scale.per_token()) return 0;
    const std::int64_t at = scale.offset(place.page, place.slot) + std::int64_t(kv_head) * scale.head;
    prefetch_line(scale.at + at);
    prefetch_line(scale.at + at + std::int64_t(heads_ - 1) * scale.head);
    return at;
  }

  /// Computes the offset of a row's block scales, and prefetches them.
  std::int64_t locate_scale(const BlockScaleArray& scales, const PagePlace& place, int kv_head) const {
    const std::int64_t at   = scales.offset(place.page, place.slot, kv_head);
    const auto* const first = static_cast<const char*>(scales.at) + at;
    prefetch_line(first);
    prefetch_line(first + std::int64_t(heads_ - 1) * scales.head);
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
  int value_stride_;      ///< elements of a row of o_
  std::int64_t k_head_, v_head_;
  std::int64_t k_first_ = 0, v_first_ = 0;  ///< offset of the selected head's rows from the first head's
  int coming_token_ = 0, coming_head_ = 0;  ///< next row to prefetch, in the next tile
  Acc* base_;
  Acc* q_;                     ///< [R][key_stride], of the selected head; zeros beyond head_dim
  Acc* o_;                     ///< [R][value_stride], of the selected head
  Acc *max_, *sum_;            ///< [max_score_width], of the selected head
  Acc* factor_;                ///< of the scores of pairs, whose queries are stored as they are: of the selected head
  Acc *k_scale_, *v_scale_;    ///< [tile_tokens], of the selected head; quantized types only
  Acc* s_;                     ///< [tile_tokens][R]
  Acc* correction_;            ///< [max_score_width]
  Acc *k_blocks_, *v_blocks_;  ///< [tile_tokens][blocks_stride], of the selected head; only with block scales
  std::int8_t* bytes_;         ///< [operand_bytes]: keys, then values, of the selected head
  std::uint32_t* digits_;      ///< [probability_digits]
  std::int32_t* q_digits_;     ///< [query_digits], of the selected head
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
