// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Kokkos_Core.hpp>

#include <cstdint>

namespace pagoda::detail {

/// E2M1 codes, eight to a word, as 16-bit numbers. The three bits of a code behind its sign, moved to the lowest bits
/// of exponent and the highest of mantissa, are the number times a power of two, which the exponent's bias makes;
/// subnormal numbers are subnormal in both.

/// Codes 0, 2, 4 and 6 of a word as the upper bytes of fp16 numbers times 2^-14, whose lower bytes are 0.
KOKKOS_INLINE_FUNCTION constexpr std::uint32_t even_e2m1_over_2_14(std::uint32_t w) {
  return ((w << 4) & 0x80808080u) | ((w << 1) & 0x0e0e0e0eu);
}
/// The same of codes 1, 3, 5 and 7.
KOKKOS_INLINE_FUNCTION constexpr std::uint32_t odd_e2m1_over_2_14(std::uint32_t w) {
  return (w & 0x80808080u) | ((w >> 3) & 0x0e0e0e0eu);
}
/// Codes n and n + 4 of a word, n < 4, as bf16 numbers times 2^-126, in the lower and the upper half.
KOKKOS_INLINE_FUNCTION constexpr std::uint32_t e2m1_pair_over_2_126(std::uint32_t w, int n) {
  const std::uint32_t sign = w << (12 - 4 * n), number = n < 2 ? w << (6 - 4 * n) : w >> (4 * n - 6);
  return (sign & 0x80008000u) | (number & 0x01c001c0u);
}

}  // namespace pagoda::detail
