// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/types.hpp>

#include "backends/host/isa.hpp"
#include "backends/host/simd_rows.hpp"
#include "backends/host/simd_vec.hpp"

#include <algorithm>
#include <cstdint>

PAGODA_ISA_BEGIN
namespace pagoda::detail::PAGODA_ISA {

/// The weighted values of integer caches, multiplied as bytes (vpdpbusd): one instruction multiplies four tokens for
/// each of 16 dims.
///   - Probabilities are the first operand. They become integers of 16 bits, in a unit for each row and tile, and each
///     of the two bytes has products of its own. Outputs of 16 bits lose nothing by that; others are summed from
///     floats.
///   - Values are the second operand. The bytes of four tokens are interleaved, without conversion.
/// Sums of a tile are exact. Elements are finite, so a token of probability 0 adds nothing.
template <class T, int R>
class SimdByteValues : public SimdRows<T, R> {
  using Base = SimdRows<T, R>;

 public:
  using Base::Base;
  using Base::tile_tokens;

 protected:
  ~SimdByteValues() = default;

#if defined(PAGODA_ISA_PAIRS)
  static constexpr bool by_bytes = Base::by_bytes;

  /// Adds the values of the tile. Returns false, and adds nothing, if outputs have more than 16 bits or
  /// split_probabilities refuses.
  bool add_values_as_bytes() {
    if (!narrow(this->args_.out) || !narrow(this->args_.list.out) || !split_probabilities()) return false;
    const int dims = this->head_dim_v_;
    int d          = 0;
    for (; d + 64 <= dims; d += 64) {
      interleave<false>(d, 64);
      for_constants<parts>([&](auto i) PAGODA_ISA_CODE { add_block<2, i>(d / 16 + 2 * (i % 2), i / 2 * 4); });
    }
    if (d == dims) return true;
    interleave<true>(d, dims - d);
    for (; d < dims; d += 16)
      for (int r = 0; r < R; r += 4) add_block<1, -1>(d / 16, r);
    return true;
  }

  /// 64 dims as signed bytes. Part: the first `count`, and zeros.
  template <bool Part>
  [[gnu::always_inline]] static __m512i load_bytes(const std::int8_t* from, int count) {
    if constexpr (!Part) return _mm512_loadu_si512(from);
    return _mm512_maskz_loadu_epi8(~std::uint64_t(0) >> (64 - count), from);
  }
  template <bool Part>
  [[gnu::always_inline]] static __m512i load_bytes(const int4x2_t* from, int count) {
    const __m256i x     = _mm256_maskz_loadu_epi8(~std::uint32_t(0) >> (Part ? 32 - count / 2 : 0), from);
    const __m512i words = _mm512_maskz_cvtepu8_epi16(~std::uint32_t(0), x);
    const __m512i fours = _mm512_and_si512(_mm512_or_si512(words, _mm512_slli_epi16(words, 4)), _mm512_set1_epi8(0x0f));
    const __m128i numbers = _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
    return _mm512_shuffle_epi8(_mm512_maskz_broadcast_i32x4(0xffff, numbers), fours);
  }

 private:
  static constexpr int parts  = R / 2;            ///< of the products of 64 dims: 32 dims and 4 rows
  static constexpr int groups = tile_tokens / 4;  ///< of tokens

  /// Whether outputs have 16 bits, or there are none.
  static bool narrow(const DeviceArray& out) { return !out.data || size_of(out.type) <= 2; }

  /// Splits the probabilities of the tile into bytes. The unit of a row is 2^-15 of the power of two that is its
  /// largest probability or below it. Returns false if a probability, which includes the scale of the value, is
  /// negative or not finite, or the largest one of a row is below 2^-100.
  bool split_probabilities() {
    constexpr int infinite = 0x7f800000, lowest = 0x0d800000;  // bits of floats
    float* const p = this->s_;
    const int used = (this->count_ + 3) / 4 * 4 * R;
    std::fill(p + this->count_ * R, p + used, 0.0f);
    __m512i most = _mm512_setzero_si512();
    for (int i = 0; i < used; i += 16) most = _mm512_max_epu32(most, _mm512_loadu_si512(p + i));
    most = _mm512_max_epu32(most, _mm512_alignr_epi32(most, most, 8));
    if constexpr (R == 4) most = _mm512_max_epu32(most, _mm512_alignr_epi32(most, most, 4));
    const __mmask16 some = _mm512_test_epi32_mask(most, most);
    if ((_mm512_cmpge_epu32_mask(most, _mm512_set1_epi32(infinite)) |
         _mm512_mask_cmplt_epu32_mask(some, most, _mm512_set1_epi32(lowest))) != 0) [[unlikely]]
      return false;
    // With the exponent field e the power of two is 2^(e - 127).
    const __m512i e             = _mm512_maskz_srli_epi32(some, most, 23);
    const __m512i units_of_rows = _mm512_maskz_slli_epi32(some, _mm512_sub_epi32(e, _mm512_set1_epi32(15)), 23);
    const __m512 factor =
        _mm512_castsi512_ps(_mm512_maskz_slli_epi32(some, _mm512_sub_epi32(_mm512_set1_epi32(269), e), 23));
    _mm512_storeu_si512(probability_units(), units_of_rows);
    const auto integers = [&](int i) PAGODA_ISA_CODE {
      const __m512i x = _mm512_maskz_cvtps_epi32(0xffff, _mm512_mul_ps(_mm512_loadu_ps(p + i), factor));
      return _mm512_min_epi32(x, _mm512_set1_epi32(0xffff));
    };
    std::uint32_t* to = this->digits_;
    for (int i = 0; i < used; i += 4 * R, to += 2 * R) {
      // Lanes hold tokens 0 and 2 of each row, then tokens 1 and 3.
      if constexpr (R == 8) {
        const __m512i x = _mm512_or_si512(integers(i), _mm512_slli_epi32(integers(i + 16), 16));
        split(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1), to);
      } else {
        const __m512i x = integers(i);
        const __m256i y =
            _mm256_or_si256(_mm512_castsi512_si256(x), _mm256_slli_epi32(_mm512_extracti64x4_epi64(x, 1), 16));
        split(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1), to);
      }
    }
    return true;
  }

  /// Stores the low bytes, then the high bytes, of four tokens and R rows. x: tokens 0 and 2, y: tokens 1 and 3.
  static void split(__m256i x, __m256i y, std::uint32_t* to) {
    const __m256i low = _mm256_set1_epi16(0xff), high = _mm256_set1_epi16(-0x100);
    const __m256i lows  = _mm256_or_si256(_mm256_and_si256(x, low), _mm256_slli_epi16(y, 8));
    const __m256i highs = _mm256_or_si256(_mm256_srli_epi16(x, 8), _mm256_and_si256(y, high));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), lows);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + R), highs);
  }
  static void split(__m128i x, __m128i y, std::uint32_t* to) {
    const __m128i low = _mm_set1_epi16(0xff), high = _mm_set1_epi16(-0x100);
    const __m128i lows  = _mm_or_si128(_mm_and_si128(x, low), _mm_slli_epi16(y, 8));
    const __m128i highs = _mm_or_si128(_mm_srli_epi16(x, 8), _mm_and_si128(y, high));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), lows);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + R), highs);
  }

  /// [max_score_width]: the units of the probabilities.
  float* probability_units() const { return reinterpret_cast<float*>(this->digits_ + groups * 2 * R); }

  /// Interleaves dims d .. d + count, four tokens at a time. Part: there are fewer than 64.
  template <bool Part>
  [[gnu::noinline, gnu::flatten]] void interleave(int d, int count) {
    const int at = d / this->per_element, used = (this->count_ + 3) / 4;
    const T* const* row  = this->rows_->value;
    std::int8_t* to      = this->bytes_ + d * tile_tokens;
    constexpr int vector = groups * 64;  // bytes from 16 dims to the next
    // Unpacking works on quarters of a register. This order of the input leaves the dims of the result in order.
    const __m512i quads = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    for (int g = 0; g < used; ++g, row += 4, to += 64) {
      __m512i x[4];
      for_constants<4>([&](auto t) PAGODA_ISA_CODE {
        if constexpr (Part) prefetch_line(row[tile_tokens + t] + at);
        x[t] = _mm512_maskz_permutexvar_epi32(0xffff, quads, load_bytes<Part>(row[t] + at, count));
      });
      const __m512i low01 = _mm512_unpacklo_epi8(x[0], x[1]), high01 = _mm512_unpackhi_epi8(x[0], x[1]);
      const __m512i low23 = _mm512_unpacklo_epi8(x[2], x[3]), high23 = _mm512_unpackhi_epi8(x[2], x[3]);
      _mm512_storeu_si512(to, _mm512_unpacklo_epi16(low01, low23));
      _mm512_storeu_si512(to + vector, _mm512_unpackhi_epi16(low01, low23));
      _mm512_storeu_si512(to + 2 * vector, _mm512_unpacklo_epi16(high01, high23));
      _mm512_storeu_si512(to + 3 * vector, _mm512_unpackhi_epi16(high01, high23));
    }
  }

  /// Adds the products of B vectors of 16 dims and four rows. Part: which part of the products of 64 dims these are.
  /// Each part prefetches its share of the lines of the next tokens. -1: prefetches nothing.
  template <int B, int Part>
  [[gnu::noinline, gnu::flatten]] void add_block(int vector, int row) {
    constexpr int stride = groups * 64, ahead = 4 / parts;
    const int used = (this->count_ + 3) / 4, line = vector / 4 * 64 / this->per_element;
    const std::int8_t* x   = this->bytes_ + vector * stride;
    const std::uint32_t* p = this->digits_ + row;
    const T* const* next   = this->rows_->value + tile_tokens + std::max(Part, 0) * ahead;
    __m512i lows[4 * B], highs[4 * B];
    for_constants<4 * B>([&](auto i) PAGODA_ISA_CODE { lows[i] = highs[i] = _mm512_setzero_si512(); });
    for (int g = 0; g < used; ++g, x += 64, p += 2 * R, next += 4) {
      if constexpr (Part >= 0)
        for (int t = 0; t < ahead; ++t) Base::template prefetch_dims<64>(next[t] + line, vector / 4 * 64);
      __m512i y[B];
      for_constants<B>([&](auto b) PAGODA_ISA_CODE { y[b] = _mm512_loadu_si512(x + b * stride); });
      for_constants<4>([&](auto r) PAGODA_ISA_CODE {
        const __m512i low = _mm512_set1_epi32(int(p[r])), high = _mm512_set1_epi32(int(p[R + r]));
        for_constants<B>([&](auto b) PAGODA_ISA_CODE {
          add_bytes(lows[r * B + b], low, y[b]);
          add_bytes(highs[r * B + b], high, y[b]);
        });
      });
    }
    for_constants<4 * B>([&](auto i) PAGODA_ISA_CODE {
      const int r        = row + i / B;
      float* const o     = this->o_ + r * this->value_stride_ + (vector + i % B) * 16;
      const __m512i both = _mm512_add_epi32(lows[i], _mm512_slli_epi32(highs[i], 8));
      const __m512 old   = _mm512_mul_ps(_mm512_loadu_ps(o), _mm512_set1_ps(this->correction_[r]));
      _mm512_storeu_ps(
          o, _mm512_fmadd_ps(_mm512_maskz_cvtepi32_ps(0xffff, both), _mm512_set1_ps(probability_units()[r]), old));
    });
  }

  /// Adds the products of unsigned bytes p and signed bytes x, four to a lane.
  [[gnu::always_inline]] static void add_bytes(__m512i& sum, __m512i p, __m512i x) {
    __m512i added = sum;
    asm("vpdpbusd %2, %1, %0" : "+v"(added) : "v"(p), "v"(x));
    sum = added;
  }
#else
  static constexpr bool by_bytes = false;
#endif
};

}  // namespace pagoda::detail::PAGODA_ISA
PAGODA_ISA_END
