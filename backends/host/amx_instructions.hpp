// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/host/simd_target.hpp"

#include <cstdint>

/// The instructions of AMX as functions. Inline assembly, because the intrinsics of GCC 12 do not name the memory that
/// they read. The assembler alone must know the instructions.
PAGODA_ISA_BEGIN
namespace pagoda::detail::PAGODA_ISA {

/// The operand of ldtilecfg.
struct alignas(64) TileShapes {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16]       = {};
};

[[gnu::always_inline]] inline void tile_configure(const TileShapes& shapes) {
  asm volatile("ldtilecfg %0" : : "m"(shapes));
}
[[gnu::always_inline]] inline void tile_release() { asm volatile("tilerelease" : : : "memory"); }

template <int Tile>
[[gnu::always_inline]] inline void tile_zero() {
  asm volatile("tilezero %%tmm%c0" : : "i"(Tile));
}
/// stride: bytes between rows.
template <int Tile>
[[gnu::always_inline]] inline void tile_load(const void* from, std::int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(Tile) : "memory");
}
template <int Tile>
[[gnu::always_inline]] inline void tile_store(void* to, std::int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(Tile) : "memory");
}
/// Sum += A times B, of pairs of bfloat16.
template <int Sum, int A, int B>
[[gnu::always_inline]] inline void tile_multiply() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(Sum), "i"(A), "i"(B));
}

/// Transposes 16 rows of 16 elements.
[[gnu::always_inline]] inline void transpose(__m512i (&r)[16]) {
  __m512i t[16];
  for (int i = 0; i < 8; ++i) {
    t[2 * i]     = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 4; ++i) {
    r[4 * i]     = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i]      = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    t[i + 4]  = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
    t[i + 8]  = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    r[i]      = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    r[i + 8]  = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    r[i + 4]  = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

/// 2^x for x <= 8, within about 4e-8; 0 below 2^-149. NaN stays NaN.
[[gnu::always_inline]] inline __m512 exp2(__m512 x) {
  x                  = _mm512_max_ps(_mm512_set1_ps(-200.0f), x);  // in this order NaN is kept; -infinity is not
  const __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 f     = _mm512_sub_ps(x, whole);
  __m512 p           = _mm512_set1_ps(0x1.44138ap-13f);
  p                  = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.5f089p-10f));
  p                  = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.3b2a54p-7f));
  p                  = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.c6af6cp-5f));
  p                  = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.ebfbep-3f));
  p                  = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.62e43p-1f));
  p                  = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, whole);
}

}  // namespace pagoda::detail::PAGODA_ISA
PAGODA_ISA_END
