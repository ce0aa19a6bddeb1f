// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/e2m1_bits.hpp"
#include "backends/cuda/mma_storage.hpp"
#include "backends/cuda/primitives.hpp"

#include <pagoda/types.hpp>

#include <cstdint>

/// How rows of E2M1 numbers and their block scales become operands of mma.m16n8k16 (mma_storage.hpp).
///
/// Codes become 16-bit numbers that are too small by a power of two (e2m1_bits.hpp), which goes into a scale.
///
///  nvfp4  A number times its block's scale has 6 significant bits: it is exact in fp16, by one multiplication, as its
///         unit 2^-7.
///  mxfp4  Powers of two go beyond fp16. Products of keys are summed up block by block, in fp16 operands without a
///         scale, and each sum is multiplied in float. Values are bf16, which holds a number times its scale exactly;
///         probabilities, of which bf16 would keep 8 bits alone, come in two parts. The scale 2^-127 counts as 0.
///
///  key_unit             what the number 1 is in a sum of products of keys
///  blocks_of_a_chunk    of 16 bytes of a row
///  first_key_block(c), first_value_block(r)   which of them the numbers of a lane are of, by its column or row
namespace pagoda::detail {

/// What both types share: steps, dims and queries are those of int4 rows.
struct E2m1Storage : MmaStorage<int4x2_t> {
  KOKKOS_FUNCTION static constexpr std::uint32_t lower(int) { return 0; }
  /// Numbers n and n + 4 of the eight in a word, as fp16 times 2^-14, in x[n].
  KOKKOS_FUNCTION static void to_fp16(std::uint32_t w, std::uint32_t (&x)[4]) {
    const std::uint32_t even = even_e2m1_over_2_14(w), odd = odd_e2m1_over_2_14(w);
    x[0] = cuda::permute(even, 0, 0x2404), x[2] = even & 0xff00ff00u;
    x[1] = cuda::permute(odd, 0, 0x2404), x[3] = odd & 0xff00ff00u;
  }
  KOKKOS_FUNCTION static void keys(std::uint32_t w, std::uint32_t w8, std::uint32_t (&a)[steps][4]) {
    std::uint32_t x[4], x8[4];
    to_fp16(w, x);
    to_fp16(w8, x8);
    for (int s = 0; s < 2; ++s) a[s][0] = x[s], a[s][1] = x8[s], a[s][2] = x[2 + s], a[s][3] = x8[2 + s];
  }
};

template <>
struct MmaStorage<nvfp4x2_t> : E2m1Storage {
  using ValueOperand                     = half_t;
  static constexpr bool split_weights    = false;
  static constexpr bool sums_by_block    = false;
  static constexpr float key_unit        = 0x1p-7f;
  static constexpr int blocks_of_a_chunk = 2;
  KOKKOS_FUNCTION static constexpr float unit(int) { return 0x1p-7f; }
  KOKKOS_FUNCTION static constexpr int first_key_block(int column) { return column >> 1; }
  KOKKOS_FUNCTION static constexpr int first_value_block(int row) { return row >> 2; }

  /// Two scales as fp16 times 2^7: the bytes of `codes`.
  KOKKOS_FUNCTION static std::uint32_t scales(std::uint32_t codes) {
    std::uint32_t x[2] = {};
    E4m3Pairs::pairs(codes, x);
    return cuda::multiply_pairs<half_t>(x[0], 0x58005800u);
  }
  /// Byte j of low and high: scales of the tokens of operands' even and odd registers.
  KOKKOS_FUNCTION static void scale_keys(std::uint32_t (&a)[steps][4], std::uint32_t low, std::uint32_t high, int j) {
    const std::uint32_t s = scales(cuda::permute(low, 0, 0x11 * j)), s8 = scales(cuda::permute(high, 0, 0x11 * j));
    for (auto& step : a)
      for (int i = 0; i < 4; ++i) step[i] = cuda::multiply_pairs<half_t>(step[i], i % 2 == 0 ? s : s8);
  }
  /// Byte j of the words: scales of the lane's tokens, which lie in the halves of registers 0 and 1, then 2 and 3.
  KOKKOS_FUNCTION static void values(std::uint32_t w, std::uint32_t w8, const std::uint32_t (&words)[4], int j,
                                     std::uint32_t (&a)[steps][4]) {
    const std::uint32_t s  = scales(cuda::permute(words[0], words[1], j | (4 + j) << 4));
    const std::uint32_t s8 = scales(cuda::permute(words[2], words[3], j | (4 + j) << 4));
    std::uint32_t x[4], x8[4];
    to_fp16(w, x);
    to_fp16(w8, x8);
    for (int n = 0; n < 4; ++n) {
      a[n % 2][n / 2]     = cuda::multiply_pairs<half_t>(x[n], s);
      a[n % 2][2 + n / 2] = cuda::multiply_pairs<half_t>(x8[n], s8);
    }
  }
};

template <>
struct MmaStorage<mxfp4x2_t> : E2m1Storage {
  using ValueOperand                     = bfloat16_t;
  static constexpr bool split_weights    = true;
  static constexpr bool sums_by_block    = true;
  static constexpr float key_unit        = 0x1p-14f;
  static constexpr int blocks_of_a_chunk = 1;
  KOKKOS_FUNCTION static constexpr float unit(int) { return 1; }
  KOKKOS_FUNCTION static constexpr int first_key_block(int) { return 0; }
  KOKKOS_FUNCTION static constexpr int first_value_block(int) { return 0; }

  /// The scale in byte j, NaN where all its bits are set: infinity less itself is NaN.
  KOKKOS_FUNCTION static float scale(std::uint32_t word, int j) {
    const std::uint32_t bits = (j < 3 ? word << (23 - 8 * j) : word >> 1) & 0x7f800000u;
    const float s            = Kokkos::bit_cast<float>(bits);
    return s + (s - s);
  }
  /// Bytes j of two words as bf16.
  KOKKOS_FUNCTION static std::uint32_t scales(std::uint32_t low, std::uint32_t high, int j) {
    const std::uint32_t twice = cuda::permute(low, high, 0x4400 + 0x1111 * j);
    const std::uint32_t s     = (twice >> 1) & 0x7f807f80u;
    return cuda::add_pairs_bf16(s, cuda::subtract_pairs_bf16(s, s));
  }
  KOKKOS_FUNCTION static void values(std::uint32_t w, std::uint32_t w8, const std::uint32_t (&words)[4], int j,
                                     std::uint32_t (&a)[steps][4]) {
    constexpr std::uint32_t two_to_126 = 0x7e807e80u;
    const std::uint32_t s = scales(words[0], words[1], j), s8 = scales(words[2], words[3], j);
    const auto scaled = [](std::uint32_t x, std::uint32_t scale) {
      return cuda::multiply_pairs<bfloat16_t>(cuda::multiply_pairs<bfloat16_t>(x, two_to_126), scale);
    };
    for (int n = 0; n < 4; ++n) {
      a[n % 2][n / 2]     = scaled(e2m1_pair_over_2_126(w, n), s);
      a[n % 2][2 + n / 2] = scaled(e2m1_pair_over_2_126(w8, n), s8);
    }
  }
};

}  // namespace pagoda::detail
