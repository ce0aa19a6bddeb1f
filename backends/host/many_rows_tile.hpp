// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/types.hpp>

#include "src/base/arithmetic.hpp"
#include "src/kernel/join.hpp"
#include "src/kernel/kernel_args.hpp"
#include "src/kernel/rows.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace pagoda::detail {

/// The tile that ManyRowsFragment processes: its scratch memory, and the functions on it, which ManyRowsProducts
/// implements for each instruction set. It holds keys and values as floats, so it is the same for all types of caches.
///
/// Keys and values lie in blocks of two vectors, so that the products of a block read adjacent memory:
///     keys     [tokens / block][head_dim][block tokens]
///     values   [head_dim_v / block][tokens][block dims]
class ManyRowsTile {
 public:
  static constexpr int rows         = 128;  ///< most query rows
  static constexpr int tile_tokens  = 64;
  static constexpr int max_width    = 16;  ///< elements of the widest vector
  static constexpr int max_block    = 2 * max_width;
  static constexpr int max_prefetch = 2 * tile_tokens;

  /// Stores query row r, multiplied by scale.
  virtual void load_query(int r, const QueryRow& row, float scale) = 0;
  /// Scores of all rows with `count` converted keys.
  virtual void multiply_keys(int count) = 0;
  /// The same as in PortableFragment. The values are converted.
  virtual void softmax(bool hides) = 0;
  virtual void multiply_values()   = 0;
  /// As SimdTile::store_row.
  virtual void store_row(const StateArray<float>& from, int n, int r, float factor, const OutputRow& to) const = 0;

  static constexpr std::size_t scratch_bytes(int head_dim, int head_dim_v) {
    const std::size_t elements = std::size_t(rows + tile_tokens) * (key_stride(head_dim) + value_stride(head_dim_v)) +
                                 std::size_t(rows) * (tile_tokens + max_width + 2);
    return (sizeof(float) * elements + rows * (sizeof(RowState<float>) + sizeof(std::uint64_t)) + 63) / 64 * 64;
  }

  /// memory: scratch_bytes, aligned to 64 bytes.
  ManyRowsTile(int head_dim, int head_dim_v, char* memory)
      : head_dim_(head_dim),
        head_dim_v_(head_dim_v),
        key_stride_(key_stride(head_dim)),
        value_stride_(value_stride(head_dim_v)) {
    const auto take = [&]<class E>(E*& at, std::size_t n) {
      at = reinterpret_cast<E*>(memory);
      memory += n * sizeof(E);
    };
    take(keys_, std::size_t(tile_tokens) * key_stride_);
    take(values_, std::size_t(tile_tokens) * value_stride_);
    take(q_, std::size_t(rows) * key_stride_);
    take(o_, std::size_t(rows) * value_stride_);
    take(s_, std::size_t(rows) * tile_tokens);
    take(sum_, std::size_t(rows) * max_width);
    take(max_, rows);
    take(correction_, rows);
    take(hidden_, rows);
    take(states_, rows);
  }

  /// Begins an item of `count` query rows. The rows that are multiplied are an even number.
  void begin(int count) {
    rows_ = padded(std::clamp(count, 0, rows), 2);
    std::fill(o_, o_ + std::size_t(rows_) * value_stride_, 0.0f);
    std::fill(sum_, sum_ + rows * max_width, 0.0f);
    std::fill(max_, max_ + rows, -infinity);
    clear_prefetches();
  }
  int used_rows() const { return rows_; }

  /// Where the tile's keys and values are written to.
  float* keys() { return keys_; }
  float* values() { return values_; }

  /// Lists rows of `bytes` bytes to prefetch while the tile is multiplied.
  void clear_prefetches() { coming_ = num_coming_ = coming_byte_ = 0; }
  void prefetch_later(const void* row, int bytes) { rows_to_prefetch_[num_coming_++] = {row, bytes}; }

  template <class Change>
  void for_each_score(int count, const Change& change) {
    for (int r = 0; r < rows_; ++r)
      for (int n = 0; n < count; ++n) change(r, n, s_[r * tile_tokens + n]);
  }

  StateArray<float> finish() {
    for (int r = 0; r < rows_; ++r) {
      float sum = 0;
      for (int j = 0; j < max_width; ++j) sum += sum_[r * max_width + j];
      states_[r] = {max_[r], sum};
    }
    return {states_, o_, value_stride_, 0, 0, rows, 0};
  }

 protected:
  ~ManyRowsTile() = default;

  static constexpr float infinity = std::numeric_limits<float>::infinity();
  static constexpr int key_stride(int head_dim) { return padded(head_dim, max_width); }
  static constexpr int value_stride(int head_dim_v) { return padded(head_dim_v, max_block); }

  struct RowToPrefetch {
    const void* at;
    int bytes;
  };

  int head_dim_, head_dim_v_, key_stride_, value_stride_;
  int rows_     = 0;      ///< query rows, rounded up to an even number
  int count_    = 0;      ///< tokens
  bool careful_ = false;  ///< some values are NaN or infinite, and some rows do not see all tokens: skip those
  float *keys_, *values_;
  float* q_;                  ///< [rows][key_stride]
  float* o_;                  ///< [rows][value_stride]
  float* s_;                  ///< [rows][tile_tokens]
  float* sum_;                ///< [rows][max_width]: partial sums, as many as a vector has lanes
  float *max_, *correction_;  ///< [rows]
  std::uint64_t* hidden_;     ///< [rows]: a bit for each token, set if hidden; only if careful_
  RowState<float>* states_;   ///< [rows]
  int coming_ = 0, num_coming_ = 0, coming_byte_ = 0;  ///< the next row to prefetch, and the next line of it
  int lines_per_step_ = 0;                             ///< that a block of rows prefetches
  RowToPrefetch rows_to_prefetch_[max_prefetch];
};
static_assert(ManyRowsTile::rows % 2 == 0 && ManyRowsTile::tile_tokens <= 64, "hidden_ has 64 bits for each row");

/// Rows of keys or of values of a tile, in the cache.
template <class T>
struct CacheRows {
  const T* row[ManyRowsTile::tile_tokens];
  /// Of each row: the scale of its token, or its block scales.
  float scale[ManyRowsTile::tile_tokens];
  const void* blocks[ManyRowsTile::tile_tokens];
  std::uint32_t block_step;  ///< distance of two block scales
};

/// The functions of an instruction set for caches of T.
template <class T>
struct ManyRowsCode {
  /// Makes the tile at `object`, of sizeof(ManyRowsTile) bytes.
  ManyRowsTile* (*make)(void* object, int head_dim, int head_dim_v, char* memory);
  /// Convert `count` rows of `dims` dims to floats, in the layouts of ManyRowsTile.
  void (*convert_keys)(const CacheRows<T>& rows, int count, int dims, float* to);
  void (*convert_values)(const CacheRows<T>& rows, int count, int dims, float* to);
};

}  // namespace pagoda::detail
