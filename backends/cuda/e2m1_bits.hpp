// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Kokkos_Core.hpp>

#include <cstdint>

namespace pagoda::detail {

/// Conversions of E2M1 codes, eight in a word, to 16-bit numbers. The exponent and mantissa bits of a code, moved to
/// the lowest bits of the exponent and the highest bit of the mantissa, give the number times a power of two, because
/// the exponent biases differ. This also holds for subnormal numbers.

/// Codes N and N + 4 of a word, N = 0 or 2, as fp16 numbers times 2^-14. Codes whose bits are 0 become -0.
///
/// A code c times 18 has the sign in bit 7 and the other bits in bits 1 .. 3, except that the carry of c = 15 clears
/// bit 7. Adding 240 makes bit 7 the sign of every c except 0. Carries beyond 8 bits end in bit 0 of the next byte,
/// which is masked.
template <int N>
KOKKOS_INLINE_FUNCTION constexpr std::uint32_t even_e2m1_pair_over_2_14(std::uint32_t w) {
  static_assert(N == 0 || N == 2);
  return ((w & 0x0f0f0f0fu) * (N == 0 ? 18u << 8 : 18u) + 0xf000f000u) & 0x8e008e00u;
}
/// Codes 1, 3, 5 and 7 of a word as the upper bytes of fp16 numbers times 2^-14, whose lower bytes are 0.
KOKKOS_INLINE_FUNCTION constexpr std::uint32_t odd_e2m1_over_2_14(std::uint32_t w) {
  return (w & 0x80808080u) | ((w >> 3) & 0x0e0e0e0eu);
}
/// Codes n and n + 4 of a word, n < 4, as bf16 numbers times 2^-126, in the lower and the upper half.
KOKKOS_INLINE_FUNCTION constexpr std::uint32_t e2m1_pair_over_2_126(std::uint32_t w, int n) {
  const std::uint32_t sign = w << (12 - 4 * n), number = n < 2 ? w << (6 - 4 * n) : w >> (4 * n - 6);
  return (sign & 0x80008000u) | (number & 0x01c001c0u);
}

}  // namespace pagoda::detail
