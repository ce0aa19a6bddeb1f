// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/primitives.hpp"
#include "src/base/arithmetic.hpp"
#include "src/base/unroll.hpp"
#include "src/kernel/kernel_args.hpp"

#include <Kokkos_Core.hpp>

#include <cstdint>

namespace pagoda::detail {

/// The block scales of a tile of 16 tokens: lanes 0 .. 15 copy and convert those of keys, one token each, and lanes 16
/// .. 31 those of values.
///
/// Asynchronous copies move aligned words, but the scales of a row are bytes that may begin anywhere. All words that
/// they touch are copied. The lane that copies a row also reads it, so it keeps the offset in the first word in a
/// register.
///
/// Words: words of scales in a row. Stages: tiles whose copies are in flight.
template <int Words, int Stages>
class BlockScaleCopies {
 public:
  static constexpr int row_bytes   = 4 * (Words + 1);
  static constexpr int stage_bytes = 32 * row_bytes;

  /// Sets the lane's rows: those of one kv head, with `count` scales each.
  KOKKOS_FUNCTION void begin(const BlockScaleArray& from, int kv_head, int count) {
    from_ = cuda::opaque(reinterpret_cast<std::uint64_t>(from.at) + static_cast<std::uint64_t>(kv_head) * from.head);
    page_ = from.page, token_ = from.token, count_ = count;
    PAGODA_UNROLL_ALL
    for (int i = 0; i < Words; ++i)
      valid_[i] = count >= 4 * i + 4 ? ~0u : count <= 4 * i ? 0u : (1u << (8 * (count - 4 * i))) - 1;
  }
  /// Advances to the next tile.
  KOKKOS_FUNCTION void next() { firsts_ <<= 2; }
  /// Starts to copy the row in a slot of a page to the lane's row in the tile's stage.
  KOKKOS_FUNCTION void copy(std::uint32_t to, int page, int slot) {
    const std::uint64_t at = from_ + static_cast<std::uint64_t>(static_cast<std::uint32_t>(page)) * page_ +
                             static_cast<std::uint64_t>(static_cast<std::uint32_t>(slot)) * token_;
    const std::uint32_t first = static_cast<std::uint32_t>(at) & 3;
    const char* const words   = reinterpret_cast<const char*>(at & ~std::uint64_t(3));
    firsts_ |= first;
    PAGODA_UNROLL_ALL
    for (int i = 0; i <= Words; ++i)
      cuda::copy_word_async(to + 4 * i, words + 4 * i, i > 0 && 4 * i >= static_cast<int>(first) + count_);
  }
  /// Loads the lane's row of the oldest tile in flight. Bytes behind the scales become copies of the first scale.
  KOKKOS_FUNCTION void load(std::uint32_t (&words)[Words], const char* row) const {
    const auto* const from = reinterpret_cast<const std::uint32_t*>(row);
    const int first        = static_cast<int>(firsts_ >> (2 * (Stages - 1)) & 3);
    PAGODA_UNROLL_ALL
    for (int i = 0; i < Words; ++i) words[i] = cuda::bytes_from(from[i], from[i + 1], first);
    const std::uint32_t fill = cuda::permute(words[0], 0, 0);
    PAGODA_UNROLL_ALL
    for (int i = 0; i < Words; ++i) words[i] = (words[i] & valid_[i]) | (fill & ~valid_[i]);
  }

 private:
  std::uint64_t from_ = 0;
  std::uint32_t page_ = 0, token_ = 0;
  std::uint32_t firsts_ = 0;  ///< two bits for each tile in flight, the newest in the lowest bits
  int count_            = 0;
  std::uint32_t valid_[Words];  ///< masks of the row's scales in its words
};

}  // namespace pagoda::detail
