// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/types.hpp>

#include "backends/host/simd_target.hpp"

#include <cstdint>
#include <cstring>

/// Loads rows of quantized caches as vectors of floats, one register at a time, with AVX-512, or AVX2 with F16C. Both
/// 8-bit formats convert through fp16. E5M2 is the upper byte of an fp16 number. E4M3, moved to the exponent and
/// mantissa of fp16, is the number divided by 2^8, subnormal numbers included.
#if defined(PAGODA_ISA_AVX512)
#define PAGODA_SIMD_QUANTIZED

PAGODA_ISA_BEGIN
namespace pagoda::detail::PAGODA_ISA {

inline constexpr int quantized_width = 16;  ///< dims

// The masked forms: GCC 12 warns of an uninitialised operand inside the plain ones.
inline __m512 load_quantized(const std::int8_t* from) {
  const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm512_maskz_cvtepi32_ps(0xffff, _mm512_maskz_cvtepi8_epi32(0xffff, x));
}

inline __m512 load_quantized(const fp8_e5m2_t* from) {
  const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm512_maskz_cvtph_ps(0xffff, _mm256_slli_epi16(_mm256_cvtepu8_epi16(x), 8));
}

inline __m512 load_quantized(const fp8_e4m3_t* from) {
  const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)), most = _mm_set1_epi8(0x7f);
  // Sign-extends each byte, then clears the copy of the sign that falls on the top bit of the fp16 exponent.
  const __m256i half = _mm256_and_si256(_mm256_slli_epi16(_mm256_cvtepi8_epi16(x), 7), _mm256_set1_epi16(-0x4080));
  const __mmask16 is = _mm_cmpneq_epi8_mask(_mm_and_si128(x, most), most);
  const __m512 nan = _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000)), factor = _mm512_set1_ps(256);
  return _mm512_mask_mul_ps(nan, is, _mm512_maskz_cvtph_ps(0xffff, half), factor);
}

/// Converts 4-bit numbers with a table of all 16 values.
inline __m512 load_from_table(const void* from, __m512 table) {
  const __m128i x = _mm_loadl_epi64(static_cast<const __m128i*>(from));
  // Duplicates each byte and shifts the second copy right by 4 bits: the low four bits are the table index.
  const __m512i twice = _mm512_maskz_cvtepu8_epi32(0xffff, _mm_unpacklo_epi8(x, x));
  const __m512i which = _mm512_maskz_srlv_epi32(0xffff, twice, _mm512_set1_epi64(std::int64_t(4) << 32));
  return _mm512_maskz_permutexvar_ps(0xffff, which, table);
}

inline __m512 load_quantized(const int4x2_t* from) {
  return load_from_table(from, _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1));
}

inline __m512 load_quantized(const E2M1x2* from) {
  return load_from_table(from, _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6));
}

/// The upper halves of x and of y: pairs of bfloat16, from floats that it holds exactly.
inline __m512i upper_halves(__m512i x, __m512i y) {
  constexpr int upper = static_cast<int>(0xffff0000u), either = 0xf8;
  return _mm512_ternarylogic_epi32(_mm512_maskz_srli_epi32(0xffff, x, 16), y, _mm512_set1_epi32(upper), either);
}

/// Pairs of 16 bits: element j of low and element j of high.
inline __m512i pairs_of(__m256i low, __m256i high) {
  const __m512i x = _mm512_maskz_cvtepu16_epi32(0xffff, low), y = _mm512_maskz_cvtepu16_epi32(0xffff, high);
  return _mm512_or_si512(x, _mm512_maskz_slli_epi32(0xffff, y, 16));
}

}  // namespace pagoda::detail::PAGODA_ISA
PAGODA_ISA_END

#elif defined(PAGODA_ISA_AVX2)
#define PAGODA_SIMD_QUANTIZED

PAGODA_ISA_BEGIN
namespace pagoda::detail::PAGODA_ISA {

inline constexpr int quantized_width = 8;  ///< dims

inline __m256 load_quantized(const std::int8_t* from) {
  const __m128i x = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x));
}

inline __m256 load_quantized(const fp8_e5m2_t* from) {
  const __m128i x = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  return _mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(x), 8));
}

inline __m256 load_quantized(const fp8_e4m3_t* from) {
  const __m128i x = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)), most = _mm_set1_epi8(0x7f);
  // Sign-extends each byte, then clears the copy of the sign that falls on the top bit of the fp16 exponent.
  const __m128i half = _mm_and_si128(_mm_slli_epi16(_mm_cvtepi8_epi16(x), 7), _mm_set1_epi16(-0x4080));
  const __m256i nan  = _mm256_cvtepi8_epi32(_mm_cmpeq_epi8(_mm_and_si128(x, most), most));
  return _mm256_or_ps(_mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(256)), _mm256_castsi256_ps(nan));
}

inline __m256 load_quantized(const int4x2_t* from) {
  int bytes;
  std::memcpy(&bytes, from, sizeof(bytes));
  const __m128i x = _mm_cvtsi32_si128(bytes);
  // Duplicates each byte, shifts the wanted four bits to the top, and shifts them back with sign extension.
  const __m256i twice = _mm256_cvtepu8_epi32(_mm_unpacklo_epi8(x, x));
  const __m256i top   = _mm256_sllv_epi32(twice, _mm256_set1_epi64x((std::int64_t(24) << 32) | 28));
  return _mm256_cvtepi32_ps(_mm256_srai_epi32(top, 28));
}

inline __m256 load_quantized(const E2M1x2* from) {
  int bytes;
  std::memcpy(&bytes, from, sizeof(bytes));
  const __m128i x = _mm_cvtsi32_si128(bytes);
  // Duplicates each byte and shifts the second copy right by 4 bits: the low three bits are the table index, and the
  // fourth is the sign.
  const __m256i twice = _mm256_cvtepu8_epi32(_mm_unpacklo_epi8(x, x));
  const __m256i which = _mm256_srlv_epi32(twice, _mm256_set1_epi64x(std::int64_t(4) << 32));
  const __m256i sign  = _mm256_slli_epi32(_mm256_srli_epi32(which, 3), 31);
  const __m256 table  = _mm256_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6);
  return _mm256_or_ps(_mm256_permutevar8x32_ps(table, which), _mm256_castsi256_ps(sign));
}

}  // namespace pagoda::detail::PAGODA_ISA
PAGODA_ISA_END
#endif
