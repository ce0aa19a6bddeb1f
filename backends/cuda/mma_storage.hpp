// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/primitives.hpp"
#include "src/kernel/e4m3_bits.hpp"

#include <pagoda/types.hpp>

#include <cstdint>

/// Converts rows of each storage type to operands of mma.m16n8k16. For all types, cuda::load_matrices loads matrices of
/// 8 rows times 16 bytes from shared memory, and a lane gets 4 bytes of a row, whatever they hold. The dims of a
/// product of keys and queries may be in any order if it is the same for both. The dims of the output may also be in
/// any order, and are reordered at the end. So lanes never exchange elements of any storage type.
///
/// Integer keys become fp16 exactly: the bits of a number in the mantissa of 1024 are that number plus 1024 (Kim et
/// al., "Who says elephants can't run"; Lin et al., "QServe"). Integer values are not converted: in the lowest bits of
/// an fp16 number with a zero exponent they are a subnormal number, which matrix instructions multiply exactly and at
/// full speed. This number is the integer plus an offset that makes it non-negative, times a power of two. The sums are
/// corrected for both. (Scores are not computed this way: sums of non-negative numbers lose a few bits, and scores are
/// exponents, in which these errors would show.)
///
/// dims            dims in a 16-byte chunk of a row
/// keys(w, w8, a)  operands a of `steps` steps of 16 dims, from words of the same chunk of tokens 0 .. 7 and 8 .. 15
/// values(w, w8, a) operands a of `steps` outputs of 16 dims, from the same words, transposed
/// queries(row, swizzle, i, c, q) the queries for chunk i of the keys, in lane c of a row, from a row of Operands
/// dim(o, row, half) the dim that output o holds in row `row` (half 0) or `row + 8` (half 1) of its operand a
/// unit(o)         the representation of the number 1 in operand a of output o
/// lower(o)        two halves that are added to operand a to remove the offset; 0: no offset
namespace pagoda::detail {

/// fp16 and bf16 without conversion: one chunk is half a step.
template <class T>
struct MmaStorage {
  using Operand              = T;
  using ValueOperand         = T;
  static constexpr int dims  = 8;
  static constexpr int steps = 0;  ///< a chunk has no whole step: see MmaFragment
  KOKKOS_FUNCTION static constexpr int dim(int o, int row, int half) { return 16 * o + row + 8 * half; }
  KOKKOS_FUNCTION static constexpr float unit(int) { return 1; }
  KOKKOS_FUNCTION static constexpr std::uint32_t lower(int) { return 0; }
};

/// 8-bit elements. Keys::pairs(w, x) and Values::pairs(w, x) make two words of two numbers each. With in_turn the words
/// hold bytes 0 and 2, and bytes 1 and 3; otherwise the lower and the upper half.
template <class Keys, class Values = Keys>
struct MmaBytes {
  using Operand              = half_t;
  using ValueOperand         = half_t;
  static constexpr int dims  = 16;
  static constexpr int steps = 1;
  KOKKOS_FUNCTION static constexpr int dim(int o, int row, int half) { return 16 * o + 2 * row + half; }
  KOKKOS_FUNCTION static constexpr float unit(int) { return Values::unit; }
  KOKKOS_FUNCTION static constexpr std::uint32_t lower(int) { return Values::lower; }

  /// Lane c of a row holds dims 4 c .. 4 c + 3.
  KOKKOS_FUNCTION static void keys(std::uint32_t w, std::uint32_t w8, std::uint32_t (&a)[steps][4]) {
    std::uint32_t low[2], high[2];
    Keys::pairs(w, low);
    Keys::pairs(w8, high);
    a[0][0] = low[0], a[0][1] = high[0], a[0][2] = low[1], a[0][3] = high[1];
  }
  KOKKOS_FUNCTION static void queries(const char* row, int chunk_swizzle, int i, int c, std::uint32_t (&q)[2 * steps]) {
    const int chunk = 2 * i + (c >> 1);
    const std::uint32_t* from =
        reinterpret_cast<const std::uint32_t*>(row + ((chunk ^ chunk_swizzle) << 4)) + 2 * (c & 1);
    q[0] = Keys::in_turn ? cuda::permute(from[0], from[1], 0x5410) : from[0];
    q[1] = Keys::in_turn ? cuda::permute(from[0], from[1], 0x7632) : from[1];
  }
  /// The word holds two dims of one token and the same dims of the next.
  KOKKOS_FUNCTION static void values(std::uint32_t w, std::uint32_t w8, std::uint32_t (&a)[steps][4]) {
    std::uint32_t low[2], high[2];
    Values::pairs(Values::in_turn ? w : cuda::permute(w, 0, 0x3120), low);
    Values::pairs(Values::in_turn ? w8 : cuda::permute(w8, 0, 0x3120), high);
    a[0][0] = low[0], a[0][1] = low[1], a[0][2] = high[0], a[0][3] = high[1];
  }
};

/// Numbers without scaling or offset.
struct MmaPlainNumbers {
  static constexpr float unit          = 1;
  static constexpr std::uint32_t lower = 0;
};

/// Converts e4m3 with integer operations and a multiplication, for devices without an instruction for it.
struct E4m3PairsByBits : MmaPlainNumbers {
  static constexpr bool in_turn = false;
  KOKKOS_FUNCTION static void pairs(std::uint32_t w, std::uint32_t (&x)[2]) {
    constexpr std::uint32_t two_to_8 = 0x5c005c00u, minus_0 = 0x80008000u;
    x[0] = cuda::multiply_add_halves(e4m3_pair_over_256(cuda::permute(w, 0, 0x1404)), two_to_8, minus_0);
    x[1] = cuda::multiply_add_halves(e4m3_pair_over_256(cuda::permute(w, 0, 0x3424)), two_to_8, minus_0);
  }
};

struct E4m3Pairs : MmaPlainNumbers {
  static constexpr bool in_turn = E4m3PairsByBits::in_turn;
  KOKKOS_FUNCTION static void pairs([[maybe_unused]] std::uint32_t w, [[maybe_unused]] std::uint32_t (&x)[2]) {
#if defined(__CUDA_ARCH__)
#if __CUDA_ARCH__ >= 890
    ptx::widen_pairs(x, w);
#else
    E4m3PairsByBits::pairs(w, x);
#endif
#endif
  }
};

/// An e5m2 number is the upper half of an fp16 number.
struct E5m2Pairs : MmaPlainNumbers {
  static constexpr bool in_turn = true;
  KOKKOS_FUNCTION static void pairs(std::uint32_t w, std::uint32_t (&x)[2]) {
    x[0] = cuda::permute(w, 0, 0x2404), x[1] = w & 0xff00ff00u;
  }
};

/// Puts n + 128 into the mantissa of 1024, and subtracts 1024 + 128.
struct Int8Pairs : MmaPlainNumbers {
  static constexpr bool in_turn = true;
  KOKKOS_FUNCTION static void pairs(std::uint32_t w, std::uint32_t (&x)[2]) {
    x[0] = cuda::subtract_halves(cuda::masked_xor<0x00ff00ffu>(w, 0x64806480u), 0x64806480u);
    x[1] = cuda::subtract_halves(cuda::masked_xor<0x00ff00ffu>(w >> 8, 0x64806480u), 0x64806480u);
  }
};

/// Puts n + 128 into the lower byte of a half.
struct Int8RawPairs {
  static constexpr float unit          = 0x1p-24f;
  static constexpr std::uint32_t lower = 0x80808080u;  ///< -128 units
  static constexpr bool in_turn        = true;
  KOKKOS_FUNCTION static void pairs(std::uint32_t w, std::uint32_t (&x)[2]) {
    x[0] = cuda::masked_xor<0x00ff00ffu>(w, 0x00800080u), x[1] = cuda::masked_xor<0x00ff00ffu>(w >> 8, 0x00800080u);
  }
};

template <>
struct MmaStorage<fp8_e4m3_t> : MmaBytes<E4m3Pairs> {};
template <>
struct MmaStorage<fp8_e5m2_t> : MmaBytes<E5m2Pairs> {};
template <>
struct MmaStorage<std::int8_t> : MmaBytes<Int8Pairs, Int8RawPairs> {};

/// 4-bit elements. The n-th of the eight numbers in a word and the one four positions after it form a pair. Pairs of
/// even n belong to one step or output, those of odd n to the next.
template <>
struct MmaStorage<int4x2_t> {
  using Operand              = half_t;
  using ValueOperand         = half_t;
  static constexpr int dims  = 32;
  static constexpr int steps = 2;
  KOKKOS_FUNCTION static constexpr int dim(int o, int row, int half) {
    return 16 * (o & ~1) + 4 * row + 2 * half + (o & 1);
  }
  KOKKOS_FUNCTION static constexpr float unit(int o) { return (o & 1) == 0 ? 0x1p-24f : 0x1p-20f; }
  /// -8 units
  KOKKOS_FUNCTION static constexpr std::uint32_t lower(int o) { return (o & 1) == 0 ? 0x80088008u : 0x80808080u; }
  /// Converts the pairs n, n + 4 for n = 0 and n = 1: puts n + 8, or 16 times that, into the mantissa of 1024, and
  /// subtracts the constant.
  KOKKOS_FUNCTION static void pairs(std::uint32_t w, std::uint32_t& even, std::uint32_t& odd) {
    even = cuda::subtract_halves(cuda::masked_xor<0x000f000fu>(w, 0x64086408u), 0x64086408u);
    odd  = cuda::multiply_add_halves(cuda::masked_xor<0x00f000f0u>(w, 0x64806480u), 0x2c002c00u, 0xd480d480u);
  }
  /// The same pairs as raw bits, without conversion.
  KOKKOS_FUNCTION static void raw_pairs(std::uint32_t w, std::uint32_t& even, std::uint32_t& odd) {
    even = cuda::masked_xor<0x000f000fu>(w, 0x00080008u), odd = cuda::masked_xor<0x00f000f0u>(w, 0x00800080u);
  }
  KOKKOS_FUNCTION static void keys(std::uint32_t w, std::uint32_t w8, std::uint32_t (&a)[steps][4]) {
    pairs(w, a[0][0], a[1][0]);
    pairs(w8, a[0][1], a[1][1]);
    pairs(w >> 8, a[0][2], a[1][2]);
    pairs(w8 >> 8, a[0][3], a[1][3]);
  }
  KOKKOS_FUNCTION static void queries(const char* row, int chunk_swizzle, int i, int c, std::uint32_t (&q)[2 * steps]) {
    const auto* const from = reinterpret_cast<const std::uint32_t*>(row + (((4 * i + c) ^ chunk_swizzle) << 4));
    q[0] = cuda::permute(from[0], from[2], 0x5410), q[1] = cuda::permute(from[1], from[3], 0x5410);
    q[2] = cuda::permute(from[0], from[2], 0x7632), q[3] = cuda::permute(from[1], from[3], 0x7632);
  }
  KOKKOS_FUNCTION static void values(std::uint32_t w, std::uint32_t w8, std::uint32_t (&a)[steps][4]) {
    raw_pairs(w, a[0][0], a[1][0]);
    raw_pairs(w >> 8, a[0][1], a[1][1]);
    raw_pairs(w8, a[0][2], a[1][2]);
    raw_pairs(w8 >> 8, a[0][3], a[1][3]);
  }
};

}  // namespace pagoda::detail
