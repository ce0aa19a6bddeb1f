// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/e2m1_bits.hpp"
#include "backends/cuda/mma_storage.hpp"
#include "backends/cuda/primitives.hpp"
#include "src/base/unroll.hpp"

#include <pagoda/types.hpp>

#include <cstdint>

/// Converts rows of E2M1 numbers and their block scales to operands of mma.m16n8k16 (mma_storage.hpp).
///
/// Codes become fp16 numbers times 2^-14 (e2m1_bits.hpp). Block scales become operands in MmaBlockScales.
///
/// nvfp4  A code times its block's scale has 6 significant bits and is a multiple of 2^-24 in units of 2^-14, so the
///        product is exact in fp16.
/// mxfp4  Scales are powers of two that may lie outside the range of fp16. Products of keys are summed block by block
///        without a scale, and each sum is multiplied by its scale as a float. Probabilities are multiplied by the
///        scales of values in fp16 if the scales of a tile lie within a range of `exponents` powers of two. Otherwise
///        values are multiplied by their scales in bf16, which is exact, and each probability is split into two bf16
///        numbers, because one keeps only 8 bits. The scale 2^-127 counts as 0.
///
/// key_unit        the representation of the number 1 in a sum of products of keys
/// scales_weights  probabilities are multiplied by scales of values
/// bytes_of(lane), convert   conversion of the scales of one row by a lane (MmaBlockScales::convert_scales)
namespace pagoda::detail {

/// Common to both types: steps, dims and queries are those of int4 rows.
struct E2m1Storage : MmaStorage<int4x2_t> {
  KOKKOS_FUNCTION static constexpr std::uint32_t lower(int) { return 0; }
  /// Converts numbers n and n + 4 of the eight in a word to fp16 times 2^-14, in x[n].
  KOKKOS_FUNCTION static void to_fp16(std::uint32_t w, std::uint32_t (&x)[4]) {
    const std::uint32_t odd = odd_e2m1_bytes(w);
    x[0] = even_e2m1_pair_over_2_14<0>(w), x[2] = even_e2m1_pair_over_2_14<2>(w);
    x[1] = odd_e2m1_pair_over_2_14<1>(odd), x[3] = odd_e2m1_pair_over_2_14<3>(odd);
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
  static constexpr bool scales_weights   = false;
  static constexpr float key_unit        = 0x1p-14f;
  static constexpr int blocks_of_a_chunk = 2;
  KOKKOS_FUNCTION static constexpr float unit(int) { return 0x1p-14f; }
  /// Index of the chunk's block that holds the lane's dims, 0 or 1.
  KOKKOS_FUNCTION static constexpr int key_block(int column) { return column >> 1; }
  KOKKOS_FUNCTION static constexpr int value_block(int row) { return row >> 2; }

  /// Converts the scales of a row to fp16. Keys: x has blocks 0, 2, 4 .. of the token, then blocks 1, 3, 5 .. Values:
  /// each half2 of x has the scales of one block for tokens 2 n and 2 n + 1. The even token's lane has blocks 0, 2, 4
  /// .., the odd token's lane blocks 1, 3, 5 ..; within each lane, blocks of even chunks come before those of odd
  /// chunks.
  KOKKOS_FUNCTION static constexpr std::uint32_t bytes_of(int lane) {
    return lane < 16 ? 0x3120 : lane % 2 == 0 ? 0x6240 : 0x3715;
  }
  template <int Words>
  KOKKOS_FUNCTION static void convert(int lane, std::uint32_t bytes, const std::uint32_t (&w)[Words],
                                      std::uint32_t (&x)[2 * Words]) {
    PAGODA_UNROLL_ALL
    for (int i = 0; i < Words; ++i) {
      const std::uint32_t neighbor = cuda::from_lane(w[i], lane ^ 1);
      std::uint32_t pairs[2]       = {};
      E4m3Pairs::pairs(cuda::permute(w[i], neighbor, bytes), pairs);
      x[i] = pairs[0], x[Words + i] = pairs[1];
    }
  }
  /// Multiplies operand a of the keys of a chunk by the tokens' scales: `low` for even registers, `high` for odd ones.
  template <int Half>
  KOKKOS_FUNCTION static void scale_keys(std::uint32_t (&a)[steps][4], std::uint32_t low, std::uint32_t high) {
    const std::uint32_t s[2] = {cuda::both_halves<Half>(low), cuda::both_halves<Half>(high)};
    for (auto& step : a)
      for (int i = 0; i < 4; ++i) step[i] = cuda::multiply_pairs<half_t>(step[i], s[i % 2]);
  }
  KOKKOS_FUNCTION static void values(std::uint32_t w, std::uint32_t w8, std::uint32_t s, std::uint32_t s8,
                                     std::uint32_t (&a)[steps][4]) {
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
  using ValueOperand                   = bfloat16_t;
  static constexpr bool scales_weights = true;
  static constexpr float key_unit      = 0x1p-14f;
  KOKKOS_FUNCTION static constexpr float unit(int) { return 1; }

  /// Order of the scales of a row: x has blocks 4 i and 4 i + 1 of word i, then blocks 4 i + 2 and 4 i + 3. Scales of
  /// keys are bf16. Scales of values are fp16 numbers, divided by 2^(lowest - 119); each half2 has one block of tokens
  /// 2 n and 2 n + 1. The even token's lane has blocks 4 i, then 4 i + 1, the odd token's lane 4 i + 2, then 4 i + 3.
  KOKKOS_FUNCTION static constexpr std::uint32_t bytes_of(int lane) {
    return lane < 16 ? 0x3120 : lane % 2 == 0 ? 0x5410 : 0x3276;
  }
  /// Scales of values can be converted if their codes are in lowest .. lowest + exponents - 1. The lowest code becomes
  /// an fp16 number with the exponent exponent_of_lowest. This leaves enough digits to weights multiplied by the lowest
  /// scale, and keeps weights (at most 2^8) times the highest scale below 2^16.
  static constexpr int exponents = 16, exponent_of_lowest = 7;
  /// Returns whether the lane's scales can be converted. lowest: 0 for keys.
  template <int Words>
  KOKKOS_FUNCTION static bool convert(int lane, std::uint32_t bytes, int lowest, const std::uint32_t (&w)[Words],
                                      std::uint32_t (&x)[2 * Words]) {
    const bool key             = lane < 16;
    const std::uint32_t factor = key ? 1u << 7 : 1u << 10;
    const std::uint32_t offset = key ? 0u : static_cast<std::uint32_t>(exponent_of_lowest) * (0x10001u << 10);
    const std::uint32_t less   = static_cast<std::uint32_t>(lowest) * 0x10001u;
    std::uint32_t beyond       = 0;
    PAGODA_UNROLL_ALL
    for (int i = 0; i < Words; ++i) {
      const std::uint32_t both     = cuda::permute(w[i], cuda::from_lane(w[i], lane ^ 1), bytes);
      const std::uint32_t codes[2] = {(both & 0x00ff00ffu) - less, ((both >> 8) & 0x00ff00ffu) - less};
      PAGODA_UNROLL_ALL
      for (int j = 0; j < 2; ++j) {
        const std::uint32_t scales = codes[j] * factor + offset;
        x[j * Words + i]           = cuda::add_zero_times<bfloat16_t>(scales, scales);  // infinity becomes NaN
        beyond |= codes[j];
      }
    }
    return key || (beyond & (0x10001u * (65536 - exponents))) == 0;
  }
  /// The scale of a token's block j.
  template <int Words>
  KOKKOS_FUNCTION static float key_scale(const std::uint32_t (&x)[2 * Words], int j) {
    const std::uint32_t word = x[j % 4 / 2 * Words + j / 4];
    return Kokkos::bit_cast<float>(j % 2 == 0 ? word << 16 : word & 0xffff0000u);
  }
  /// Scales of block j for tokens 2 n and 2 n + 1, from the rows of both tokens.
  template <int Words>
  KOKKOS_FUNCTION static std::uint32_t weight_scales(const std::uint32_t (&x)[4 * Words], int j) {
    return x[j % 4 * Words + j / 4];
  }
  /// Values without their scales, in units of 2^-14.
  KOKKOS_FUNCTION static void unscaled_values(std::uint32_t w, std::uint32_t w8, std::uint32_t (&a)[steps][4]) {
    std::uint32_t x[4], x8[4];
    to_fp16(w, x);
    to_fp16(w8, x8);
    for (int n = 0; n < 4; ++n) a[n % 2][n / 2] = x[n], a[n % 2][2 + n / 2] = x8[n];
  }

  /// Bytes j of two words as bf16.
  KOKKOS_FUNCTION static std::uint32_t scales(std::uint32_t low, std::uint32_t high, int j) {
    const std::uint32_t twice = cuda::permute(low, high, 0x4400 + 0x1111 * j);
    const std::uint32_t s     = (twice >> 1) & 0x7f807f80u;
    return cuda::add_zero_times<bfloat16_t>(s, s);
  }
  /// Multiplies values by their scales, as bf16. The words hold the scales of the lane's tokens; j is the block.
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
