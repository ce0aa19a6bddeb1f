// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/hip/matrix.hpp"
#include "backends/hip/matrix_storage.hpp"
#include "backends/hip/scale_window.hpp"
#include "src/base/unroll.hpp"
#include "src/kernel/e4m3_bits.hpp"

#include <cstdint>
#include <type_traits>
#include <variant>

/// Block scales of the keys and values of a MatrixTile. They become fp16 and multiply the expanded elements, two at a
/// time. Products of elements and scales are exact.
namespace pagoda::detail::hip {

/// Storage types without block scales.
template <class Storage, int Lanes, int KeyLoads, int ValueTokens, int TokenBlocks>
struct BlockScales {
  static constexpr bool has_windows = false;
  PAGODA_HIP_FUNCTION void convert_keys() {}
  PAGODA_HIP_FUNCTION void convert_values() {}
  PAGODA_HIP_FUNCTION static std::uint32_t scale_key(std::uint32_t x, int, int, int) { return x; }
  PAGODA_HIP_FUNCTION static std::uint32_t scale_value(std::uint32_t x, int, int) { return x; }
};

/// A lane's scales of a tile: of its chunks of keys, and of its values, which lie in one block of each of its tokens.
/// Two scales of fp16 share a word: of adjacent blocks or runs of tokens (keys), or of adjacent tokens (values).
template <class Storage, int Lanes, int KeyLoads, int ValueTokens, int TokenBlocks>
  requires(Storage::block_dims > 0)
class BlockScales<Storage, Lanes, KeyLoads, ValueTokens, TokenBlocks> {
 public:
  static constexpr bool has_windows = Storage::scale_type == BlockScaleType::e8m0;
  static constexpr int chunk_blocks = 128 / Storage::bits / Storage::block_dims;  ///< blocks of a chunk of keys
  static constexpr int key_pairs    = TokenBlocks * KeyLoads * chunk_blocks / 2;
  static constexpr int value_pairs  = TokenBlocks * ValueTokens / 2;
  static_assert(chunk_blocks == (has_windows ? 1 : 2));
  static_assert(2 * key_pairs == TokenBlocks * KeyLoads * chunk_blocks);

  /// at(b, s): address of the first scale of the lane's chunk s of token 16 b + key_token().
  template <class At>
  PAGODA_HIP_FUNCTION void load_keys(const At& at) {
    PAGODA_UNROLL_ALL
    for (int b = 0; b < TokenBlocks; ++b) {
      PAGODA_UNROLL_ALL
      for (int s = 0; s < KeyLoads; ++s) keys_[b * KeyLoads + s] = load_bytes<chunk_blocks>(at(b, s));
    }
  }
  /// at(b, i): address of the scale of the lane's values of token 16 b + value_token() + i.
  template <class At>
  PAGODA_HIP_FUNCTION void load_values(const At& at) {
    PAGODA_UNROLL_ALL
    for (int b = 0; b < TokenBlocks; ++b) {
      PAGODA_UNROLL_ALL
      for (int i = 0; i < ValueTokens; ++i) values_[b * ValueTokens + i] = load_bytes<1>(at(b, i));
    }
  }

  /// Converts the scales, if they need no windows.
  PAGODA_HIP_FUNCTION void convert_keys()
    requires(!has_windows)
  {
    std::uint32_t codes[key_pairs];
    key_codes(codes);
    PAGODA_UNROLL_ALL
    for (int p = 0; p < key_pairs; ++p) key_scales_[p] = e4m3_pair_over_256(codes[p]);
  }
  PAGODA_HIP_FUNCTION void convert_values()
    requires(!has_windows)
  {
    std::uint32_t codes[value_pairs];
    value_codes(codes);
    PAGODA_UNROLL_ALL
    for (int p = 0; p < value_pairs; ++p) value_scales_[p] = e4m3_pair_over_256(codes[p]);
  }
  /// With windows: converts the scales of keys. Products with the scales of next_keys() must follow while there are
  /// any.
  PAGODA_HIP_FUNCTION void begin_keys(int lane) {
    std::uint32_t codes[key_pairs];
    key_codes(codes);
    if (!likely(key_window_.convert(codes, key_scales_))) {
      key_window_.move(codes, key_scales_, lane);
      keep_order<5>();  // or the compiler merges this branch with that of values, and the object is in scratch memory
    }
  }
  PAGODA_HIP_FUNCTION bool next_keys() {
    if (likely(!key_window_.has_more())) return false;
    std::uint32_t codes[key_pairs];
    key_codes(codes);
    key_window_.next(codes, key_scales_);
    keep_order<6>();
    return true;
  }
  /// The same for values.
  PAGODA_HIP_FUNCTION void begin_values(int lane) {
    std::uint32_t codes[value_pairs];
    value_codes(codes);
    if (!likely(value_window_.convert(codes, value_scales_))) {
      value_window_.move(codes, value_scales_, lane);
      keep_order<7>();
    }
  }
  PAGODA_HIP_FUNCTION bool next_values() {
    if (likely(!value_window_.has_more())) return false;
    std::uint32_t codes[value_pairs];
    value_codes(codes);
    value_window_.next(codes, value_scales_);
    keep_order<8>();
    return true;
  }
  PAGODA_HIP_FUNCTION float key_factor() const { return key_window_.factor(); }
  PAGODA_HIP_FUNCTION float value_factor() const { return value_window_.factor(); }

  /// Multiplies two elements of word w of the lane's chunk s of block b of tokens by their scale.
  PAGODA_HIP_FUNCTION std::uint32_t scale_key(std::uint32_t x, int b, int s, int w) const {
    const int i      = (b * KeyLoads + s) * chunk_blocks + w * chunk_blocks / 4;
    const auto pair  = __builtin_bit_cast(Halves2, key_scales_[i / 2]);
    const auto scale = i % 2 == 0 ? Halves2{pair[0], pair[0]} : Halves2{pair[1], pair[1]};
    return __builtin_bit_cast(std::uint32_t, __builtin_bit_cast(Halves2, x) * scale);
  }
  /// Multiplies elements of tokens 2 k and 2 k + 1 of block b of tokens by their scales.
  PAGODA_HIP_FUNCTION std::uint32_t scale_value(std::uint32_t x, int b, int k) const {
    const auto scales = __builtin_bit_cast(Halves2, value_scales_[b * (ValueTokens / 2) + k]);
    return __builtin_bit_cast(std::uint32_t, __builtin_bit_cast(Halves2, x) * scales);
  }
  /// Whether no scale of the lane's values is NaN.
  PAGODA_HIP_FUNCTION bool values_are_finite() const {
    std::uint32_t ones = 0;
    PAGODA_UNROLL_ALL
    for (const std::uint32_t pair : value_scales_) ones |= (pair & 0x7c007c00u) + 0x04000400u;
    return (ones & 0x80008000u) == 0;
  }

 private:
  template <int Count>
  PAGODA_HIP_FUNCTION static std::uint32_t load_bytes(const char* from) {
    using Bytes [[gnu::aligned(1)]] = std::conditional_t<Count == 1, std::uint8_t, std::uint16_t>;
    return load_global<Bytes>(from);
  }
  /// Codes of two scales in a word: in the upper bytes of its halves (E4M3) or in the lower ones (E8M0).
  PAGODA_HIP_FUNCTION void key_codes(std::uint32_t (&codes)[key_pairs]) const {
    PAGODA_UNROLL_ALL
    for (int p = 0; p < key_pairs; ++p)
      codes[p] = chunk_blocks == 2 ? permute(keys_[p], keys_[p], 0x010c000cu)
                                   : pair_of(keys_[2 * p / chunk_blocks], keys_[(2 * p + 1) / chunk_blocks]);
  }
  PAGODA_HIP_FUNCTION void value_codes(std::uint32_t (&codes)[value_pairs]) const {
    PAGODA_UNROLL_ALL
    for (int p = 0; p < value_pairs; ++p) codes[p] = pair_of(values_[2 * p], values_[2 * p + 1]);
  }
  PAGODA_HIP_FUNCTION static std::uint32_t pair_of(std::uint32_t low, std::uint32_t high) {
    return has_windows ? low | high << 16 : permute(high, low, 0x040c000cu);
  }

  std::uint32_t keys_[TokenBlocks * KeyLoads], values_[TokenBlocks * ValueTokens];  ///< as loaded
  std::uint32_t key_scales_[key_pairs], value_scales_[value_pairs];
  [[no_unique_address]] std::conditional_t<has_windows, ScaleWindow<Lanes>, std::monostate> key_window_, value_window_;
};

}  // namespace pagoda::detail::hip
