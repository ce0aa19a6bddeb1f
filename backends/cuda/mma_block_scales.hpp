// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/mma_queries.hpp"
#include "backends/cuda/primitives.hpp"
#include "src/base/arithmetic.hpp"
#include "src/base/unroll.hpp"

#include <Kokkos_Core.hpp>

#include <cstdint>

namespace pagoda::detail {

/// Converts the block scales of MmaFragment from copied bytes to operands of the products.
///
/// For mxfp4, scales of values are multiplied by probabilities as fp16 numbers, whose exponents have a smaller range
/// than those of scales. The output therefore has a unit, a power of two. A new unit is chosen when a tile's scales do
/// not fit the current one. If the scales of a tile fit no unit, its values are multiplied by their scales instead.
template <class T, int DimTile, bool AnyQuery, bool AnyAlignment>
class MmaBlockScales : public MmaQueries<T, DimTile, AnyQuery, AnyAlignment> {
 protected:
  using Queries = MmaQueries<T, DimTile, AnyQuery, AnyAlignment>;
  using Queries::block_row;
  using Queries::block_words;
  using Queries::blocks_;
  using Queries::column_;
  using Queries::converted_at;
  using Queries::converted_row_bytes;
  using Queries::keys_;
  using Queries::lane_;
  using Queries::Queries;
  using Queries::scales_weights;
  using Queries::tile_tokens;
  using typename Queries::Storage;

  KOKKOS_FUNCTION void begin_block_scales() {
    block_bytes_ = cuda::opaque(Storage::bytes_of(lane_));
    lowest_code_ = lane_ < tile_tokens ? 0 : 119;
  }
  /// Converts the block scales of the tile and stores them in scratch. Returns false if the lane's scales are not in
  /// the range for products with probabilities; fit_scales() must follow before the second product.
  KOKKOS_FUNCTION bool convert_scales() {
    std::uint32_t words[block_words], x[2 * block_words];
    blocks_.load(words, block_row());
    bool fits = true;
    if constexpr (scales_weights) {
      fits = Storage::convert(lane_, block_bytes_, lowest_code_, words, x);
    } else {
      Storage::convert(lane_, block_bytes_, words, x);
    }
    cuda::store_words(converted_row(lane_), x);
    return fits;
  }
  /// Changes the output's unit so that the scales of the tile's values are in the range, and stores the scales again.
  /// Returns the factor by which the output must be multiplied.
  KOKKOS_FUNCTION float fit_scales() {
    std::uint32_t words[block_words], x[2 * block_words];
    blocks_.load(words, block_row());
    const float factor = change_unit(words);
    cuda::sync_warp();  // all lanes have read the scales that are replaced
    static_cast<void>(Storage::convert(lane_, block_bytes_, lowest_code_, words, x));
    if (!scales_fit_ && lane_ >= tile_tokens)
      for (int i = 0; i < block_words; ++i) x[i] = words[i];
    cuda::store_words(converted_row(lane_), x);
    cuda::sync_warp();
    return factor;
  }
  /// Chooses the unit of the output for the scales of the tile's values. If these are too far apart for one unit, the
  /// unit becomes 1 and scales_fit_ false. Returns the old unit divided by the new one.
  KOKKOS_FUNCTION float change_unit(const std::uint32_t (&words)[block_words]) {
    const bool key = lane_ < tile_tokens;
    int low = 255, high = 0;
    PAGODA_UNROLL_ALL
    for (int i = 0; i < 4 * block_words; ++i) {
      const int code = static_cast<int>(words[i / 4] >> (8 * (i % 4)) & 255);
      low = least(low, code), high = greatest(high, code);
    }
    low = cuda::min_of_lanes(key ? 255 : low), high = cuda::max_of_lanes(key ? 0 : high);
    const int room   = high - low < 12 ? 4 : 0;  // for larger scales in later tiles
    const int lowest = high + room + 1 - Storage::exponents;
    scales_fit_      = high - low < Storage::exponents && lowest > 80 && lowest < 160;
    if (!key) lowest_code_ = scales_fit_ ? lowest : -256;  // no code is in the range of -256
    const int before = unit_exponent_;
    unit_exponent_   = scales_fit_ ? lowest - 119 + 14 : 0;
    return power_of_two(before - unit_exponent_);
  }
  /// Converted scales of keys of token n, or of values of token n - 16.
  KOKKOS_FUNCTION char* converted_row(int n) const { return keys_ + converted_at + n * converted_row_bytes; }
  /// Scales of keys of token n that the lane needs.
  template <int N>
  KOKKOS_FUNCTION void load_key_scales(int n, std::uint32_t (&x)[N]) const {
    const char* from = converted_row(n);
    if constexpr (!scales_weights) from += Storage::key_block(column_) * (converted_row_bytes / 2);
    cuda::load_words(x, from);
  }
  /// The output's unit.
  KOKKOS_FUNCTION float output_unit() const { return power_of_two(unit_exponent_); }
  KOKKOS_FUNCTION static float power_of_two(int exponent) { return Kokkos::bit_cast<float>((127 + exponent) << 23); }

  bool scales_fit_ = true;  ///< scales of the tile's values are in the range for products with probabilities

 private:
  std::uint32_t block_bytes_ = 0;  ///< which bytes of block scales the lane converts
  int lowest_code_           = 0;  ///< lowest code in that range; 0 for lanes that convert scales of keys
  int unit_exponent_         = 14;
};

}  // namespace pagoda::detail
