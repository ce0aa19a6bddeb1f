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
/// The bits of codes 1, 3, 5 and 7 of a word where the upper byte of an fp16 number has them: the sign in bit 7 of each
/// byte, the others in bits 1 .. 3. The remaining bits may be set. One instruction selects the bits after the shift;
/// the compiler, which knows what is used of the result, takes two.
KOKKOS_INLINE_FUNCTION std::uint32_t odd_e2m1_bytes(std::uint32_t w) {
  const std::uint32_t shifted = w >> 3;
#if defined(__CUDA_ARCH__)
  std::uint32_t x;
  asm("lop3.b32 %0, %1, %2, %3, 0xca;" : "=r"(x) : "n"(0x80808080u), "r"(w), "r"(shifted));
  return x;
#else
  return (w & 0x80808080u) | (shifted & ~0x80808080u);
#endif
}
/// Codes N and N + 4 of a word, N = 1 or 3, as fp16 numbers times 2^-14, from odd_e2m1_bytes of the word.
template <int N>
KOKKOS_INLINE_FUNCTION constexpr std::uint32_t odd_e2m1_pair_over_2_14(std::uint32_t bytes) {
  static_assert(N == 1 || N == 3);
  return (N == 1 ? bytes << 8 : bytes) & 0x8e008e00u;
}
/// Codes n and n + 4 of a word, n < 4, as bf16 numbers times 2^-126, in the lower and the upper half.
KOKKOS_INLINE_FUNCTION constexpr std::uint32_t e2m1_pair_over_2_126(std::uint32_t w, int n) {
  const std::uint32_t sign = w << (12 - 4 * n), number = n < 2 ? w << (6 - 4 * n) : w >> (4 * n - 6);
  return (sign & 0x80008000u) | (number & 0x01c001c0u);
}

}  // namespace pagoda::detail
