// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/hip/matrix.hpp"
#include "backends/hip/matrix_block_scales.hpp"
#include "backends/hip/matrix_storage.hpp"
#include "src/base/unroll.hpp"

#include <cstdint>

namespace pagoda::detail::hip {

/// Which elements of a tile each lane of a wave loads, and the operands of the products made of them: see MatrixTile.
/// `group` is lane / 16 and `column` is lane % 16.
template <class Arch, class Storage, int KeyDims, int ValueDims, int TokenBlocks>
class MatrixOperands {
 protected:
  static constexpr auto type        = Storage::type;
  static constexpr int per_half     = Storage::per_half;
  static constexpr int operand_half = 16 / Arch::operand_groups;  ///< elements of an operand, in a lane
  static constexpr int words        = operand_half / 2;           ///< words of an operand
  using Operand                     = typename Arch::Operand;

 public:
  static constexpr int tokens         = 16 * TokenBlocks;
  static constexpr int sums           = 256 / Arch::lanes;                            ///< of a product, in a lane
  static constexpr int chunk_dims     = 128 / Storage::bits;                          ///< dims in 16 bytes
  static constexpr int key_loads      = KeyDims / chunk_dims / Arch::operand_groups;  ///< of a lane for a row of keys
  static constexpr int value_dims     = ValueDims / 16 < chunk_dims ? ValueDims / 16 : chunk_dims;  ///< of a load
  static constexpr int value_loads    = ValueDims / 16 / value_dims;  ///< loads of a lane for a row of values
  static constexpr int operand_tokens = operand_half;                 ///< tokens of a block whose values a lane loads
  static constexpr int query_loads    = key_loads * per_half;         ///< loads of a lane for a query row
  static constexpr int value_words    = value_dims * Storage::bits / 32;
  static_assert(key_loads * chunk_dims * Arch::operand_groups == KeyDims && value_words > 0);
  using ValueWords = Words<value_words>;
  using Scales     = BlockScales<Storage, Arch::lanes, key_loads, operand_tokens, TokenBlocks>;
  static_assert(Storage::block_dims == 0 || (value_loads == 1 && value_dims <= Storage::block_dims));

  PAGODA_HIP_FUNCTION explicit MatrixOperands(int lane) : group_(lane >> 4), column_(lane & 15) {}

  PAGODA_HIP_FUNCTION int group() const { return group_; }
  PAGODA_HIP_FUNCTION int column() const { return column_; }
  /// The chunk of 16 bytes of a row of keys that the lane loads in its load s.
  PAGODA_HIP_FUNCTION int key_chunk(int s) const { return operand_group() + Arch::operand_groups * s; }
  /// The token of a block whose key the lane loads.
  PAGODA_HIP_FUNCTION int key_token() const { return Arch::token_of_row(column_); }
  /// The first dim of a query that the lane loads in its load s.
  PAGODA_HIP_FUNCTION int query_dim(int s) const { return chunk_dims * key_chunk(s / per_half) + 8 * (s % per_half); }
  /// The first dim of a row of values that column `sixteenth` loads in its load h, and of the output in that row of
  /// sums.
  PAGODA_HIP_FUNCTION static constexpr int value_dim(int h, int sixteenth) {
    return 16 * value_dims * h + value_dims * sixteenth;
  }
  /// Row of the lane's sum i of a product.
  PAGODA_HIP_FUNCTION int sum_row(int i) const { return Arch::sum_row(i, group_); }
  /// The first token of a block whose values the lane loads.
  PAGODA_HIP_FUNCTION int value_token() const { return operand_tokens * operand_group(); }
  /// Token in the tile of the lane's score i of block b.
  PAGODA_HIP_FUNCTION int token(int b, int i) const { return 16 * b + sums * group_ + i; }

  /// Loads keys. at(b, s): address of the lane's chunk s of token 16 b + key_token().
  template <class At>
  PAGODA_HIP_FUNCTION void load_keys(const At& at) {
    PAGODA_UNROLL_ALL
    for (int b = 0; b < TokenBlocks; ++b) {
      PAGODA_UNROLL_ALL
      for (int s = 0; s < key_loads; ++s) keys_[b][s] = load_global<Words4>(at(b, s));
    }
  }
  /// Loads values. at(b, i, h): address of the lane's load h of token 16 b + value_token() + i.
  template <class At>
  PAGODA_HIP_FUNCTION void load_values(const At& at) {
    PAGODA_UNROLL_ALL
    for (int b = 0; b < TokenBlocks; ++b) {
      PAGODA_UNROLL_ALL
      for (int i = 0; i < operand_tokens; ++i) {
        PAGODA_UNROLL_ALL
        for (int h = 0; h < value_loads; ++h) values_[b][i][h] = load_global<ValueWords>(at(b, i, h));
      }
    }
  }
  /// Block scales; see BlockScales.
  template <class At>
  PAGODA_HIP_FUNCTION void load_key_scales(const At& at) {
    scales_.load_keys(at);
  }
  template <class At>
  PAGODA_HIP_FUNCTION void load_value_scales(const At& at) {
    scales_.load_values(at);
  }
  /// The lane's first block scale in rows of keys and of values, and blocks from a chunk of keys to the lane's next.
  PAGODA_HIP_FUNCTION int key_block() const { return chunk_dims * key_chunk(0) / Storage::block_dims; }
  PAGODA_HIP_FUNCTION int value_block() const { return value_dim(0, column_) / Storage::block_dims; }
  static constexpr int key_block_step =
      Storage::block_dims == 0 ? 0 : Arch::operand_groups * chunk_dims / Storage::block_dims;
  /// Sets keys from chunk `end` on to zero.
  PAGODA_HIP_FUNCTION void clear_keys(int end) {
    PAGODA_UNROLL_ALL
    for (int b = 0; b < TokenBlocks; ++b) {
      PAGODA_UNROLL_ALL
      for (int s = 0; s < key_loads; ++s)
        for (int w = 0; w < 4; ++w) keys_[b][s][w] = key_chunk(s) < end ? keys_[b][s][w] : 0;
    }
  }

 protected:
  PAGODA_HIP_FUNCTION int operand_group() const { return Arch::operand_groups == 1 ? 0 : group_; }
  PAGODA_HIP_FUNCTION int lane() const { return 16 * group_ + column_; }

  /// Operand a of product p of block b: keys.
  PAGODA_HIP_FUNCTION Operand key_operand(int b, int p) const {
    constexpr int at_once = words < per_half ? words : per_half;  ///< words that come from one word of keys
    Operand a;
    PAGODA_UNROLL_ALL
    for (int k = 0; k < words; k += at_once) {
      const int first = words * p + k, word = first / per_half;
      std::uint32_t x[per_half];
      Storage::expand(keys_[b][word / 4][word % 4], x);
      PAGODA_UNROLL_ALL
      for (int e = 0; e < at_once; ++e) a[k + e] = scales_.scale_key(x[first % per_half + e], b, word / 4, word % 4);
    }
    return a;
  }
  /// Whether no value of the tile is infinite or NaN.
  PAGODA_HIP_FUNCTION bool values_are_finite() const {
    if constexpr (!Storage::floating) return true;
    if constexpr (Storage::block_dims > 0) return !any_lane(!scales_.values_are_finite());
    // An exponent of ones overflows into the upper bit of its half.
    constexpr std::uint32_t exponent = type == MatrixType::fp16 ? 0x7c007c00u : 0x7f807f80u;
    constexpr std::uint32_t one      = type == MatrixType::fp16 ? 0x04000400u : 0x00800080u;
    std::uint32_t ones               = 0;
    PAGODA_UNROLL_ALL
    for (const auto& block : values_) {
      PAGODA_UNROLL_ALL
      for (const auto& token : block)
        for (const ValueWords& load : token)
          for (int w = 0; w < value_words; ++w) {
            std::uint32_t x[per_half];
            Storage::expand(load[w], x);
            PAGODA_UNROLL_ALL
            for (const std::uint32_t halves : x) ones |= (halves & exponent) + one;
          }
    }
    return !any_lane((ones & 0x80008000u) != 0);
  }

  /// Calls f(j, a) for each output j, where a[b] is the operand of block b: dim j of the lane's tokens.
  template <class F>
  PAGODA_HIP_FUNCTION void for_each_value(const F& f) const {
    PAGODA_UNROLL_ALL
    for (int i = 0; i < value_loads * value_words; ++i) {
      pass_values<0>(f, i / value_words, i % value_words);
      pass_values<1>(f, i / value_words, i % value_words);
    }
  }
  /// Called in loops that multiply keys or values several times. Otherwise the compiler would expand all of them before
  /// the loop, which takes many registers.
  PAGODA_HIP_FUNCTION void settle_keys() {
    PAGODA_UNROLL_ALL
    for (auto& block : keys_) {
      PAGODA_UNROLL_ALL
      for (Words4& x : block) x = settle(x);
    }
  }
  PAGODA_HIP_FUNCTION void settle_values() {
    PAGODA_UNROLL_ALL
    for (auto& block : values_) {
      PAGODA_UNROLL_ALL
      for (auto& token : block)
        for (ValueWords& x : token)  // by words: clang has no register for a vector of one word
          for (int w = 0; w < value_words; ++w) x[w] = settle(x[w]);
    }
  }

  int group_, column_;
  [[no_unique_address]] Scales scales_;

 private:
  /// The operands of the dims in the lower (Half 0) or upper (Half 1) 16 bits of word w of load h.
  template <int Half, class F>
  PAGODA_HIP_FUNCTION void pass_values(const F& f, int h, int w) const {
    Operand a[per_half][TokenBlocks];
    PAGODA_UNROLL_ALL
    for (int b = 0; b < TokenBlocks; ++b) {
      PAGODA_UNROLL_ALL
      for (int k = 0; k < words; ++k) {
        std::uint32_t x[per_half];
        Storage::expand(pair_halves<Half>(values_[b][2 * k][h][w], values_[b][2 * k + 1][h][w]), x);
        PAGODA_UNROLL_ALL
        for (int e = 0; e < per_half; ++e) a[e][b][k] = scales_.scale_value(x[e], b, k);
      }
    }
    PAGODA_UNROLL_ALL
    for (int e = 0; e < per_half; ++e) f(value_dims * h + per_half * (2 * w + Half) + e, a[e]);
  }

  Words4 keys_[TokenBlocks][key_loads];
  ValueWords values_[TokenBlocks][operand_tokens][value_loads];
};

}  // namespace pagoda::detail::hip
