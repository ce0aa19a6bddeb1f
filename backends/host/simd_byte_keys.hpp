// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/types.hpp>

#include "backends/host/simd_byte_values.hpp"
#include "backends/host/simd_vec.hpp"
#include "src/kernel/rows.hpp"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

PAGODA_ISA_BEGIN
namespace pagoda::detail::PAGODA_ISA {

/// The scores of integer caches, multiplied as bytes (vpdpbusd): one instruction multiplies four dims of 16 tokens.
///   - Keys are the first operand: 128 is added to each, and the sums begin with -128 times the sums of the queries.
///     Their bytes are transposed, four dims of a token in one lane, so each row has a vector of 16 scores without a
///     tree.
///   - Queries are the second operand. They become integers of 23 bits and a sign, in a unit for each row, and each of
///     their three signed bytes has products of its own.
/// The sums are exact. A head with a query row that integers do not hold well enough is multiplied as floats.
template <class T, int R>
class SimdByteKeys : public SimdByteValues<T, R> {
  using Base = SimdByteValues<T, R>;

 public:
  using Base::Base;
  using Base::tile_tokens;
  using typename Base::Acc;

  void load_query(int r, const QueryRow& row, Acc scale) override {
    Base::load_query(r, row, scale);
#if defined(PAGODA_ISA_PAIRS)
    if constexpr (Base::by_bytes) split_query(r);
#endif
  }

 protected:
  ~SimdByteKeys() = default;

#if defined(PAGODA_ISA_PAIRS)
  /// Computes the scores of the tile. Returns false, and computes nothing, if split_query has refused a row.
  bool score_as_bytes() {
    for (int r = 0; r < R; ++r)
      if (query_units()[r] != query_units()[r]) return false;
    constexpr int halves = R == 4 ? 2 : 1;  // vectors of 16 tokens whose sums are in registers at once
    for (int first = 0; first < this->count_; first += 16 * halves) {
      for (int half = first; half < first + 16 * halves; half += 16)
        for (int d = 0; d < this->head_dim_; d += 64)
          d + 64 <= this->head_dim_ ? transpose<false>(half, d, 64) : transpose<true>(half, d, this->head_dim_ - d);
      add_keys<halves>(first);
    }
    return true;
  }

 private:
  static constexpr int digits = 3;  ///< bytes of a query

  int columns() const { return this->byte_stride(this->head_dim_) / 4; }  ///< of four dims
  /// [R][digits]: what the sums begin with.
  std::int32_t* starts() const { return this->q_digits_ + columns() * R * digits; }
  /// [R]: the units of the queries. NaN: the row cannot be split.
  float* query_units() const { return reinterpret_cast<float*>(starts() + R * digits); }

  /// Splits query row r into bytes: [columns][R][digits][4 dims]. Its unit is 2^-22 of the power of two that is its
  /// largest element, or below it. Refuses a row with an element that is not finite, without an element from 2^-100 on,
  /// or whose largest element is more than 0.75 sqrt(head_dim) times the mean of their sizes: the rounding of the
  /// others would come near to the tolerance of a float's. Refuses rows so long that sums of 32 bits could overflow.
  void split_query(int r) {
    const int dims     = this->head_dim_;
    const auto element = [&](int d) PAGODA_ISA_CODE { return _mm512_loadu_ps(this->q_ + d * R + r * 16); };
    __m512 most = _mm512_setzero_ps(), total = _mm512_setzero_ps();
    for (int d = 0; d < dims; d += 16) {
      const __m512 size = _mm512_abs_ps(element(d));
      most              = _mm512_max_ps(size, most);
      total             = _mm512_add_ps(total, size);
    }
    const float largest = _mm512_reduce_max_ps(most), sum_of_sizes = _mm512_reduce_add_ps(total);
    const bool is_zero = sum_of_sizes == 0;
    if (dims > 1 << 15 ||
        (!is_zero && !(largest >= 0x1p-100f && largest * std::sqrt(float(dims)) <= 0.75f * sum_of_sizes &&
                       sum_of_sizes < std::numeric_limits<float>::infinity()))) {
      query_units()[r] = std::numeric_limits<float>::quiet_NaN();
      return;
    }
    // A largest element just below a power of two counts as that, so that the upper byte does not overflow.
    const int e         = is_zero ? 127 : static_cast<int>((std::bit_cast<std::uint32_t>(largest) + 0x20000) >> 23);
    const __m512 factor = power_of_two(22 - (e - 127));
    query_units()[r]    = _mm512_cvtss_f32(power_of_two(e - 127 - 22));
    __m512i sum[digits] = {};
    for (int d = 0; d < 4 * columns(); d += 16) {
      __m512i left = _mm512_setzero_si512();
      if (d < dims) left = _mm512_maskz_cvtps_epi32(0xffff, _mm512_mul_ps(element(d), factor));
      __m128i bytes[digits];
      for_constants<digits>([&](auto i) PAGODA_ISA_CODE {
        const __m512i digit = _mm512_srai_epi32(_mm512_slli_epi32(left, 24), 24);  // the lowest byte, signed
        left                = _mm512_srai_epi32(_mm512_sub_epi32(left, digit), 8);
        sum[i]              = _mm512_add_epi32(sum[i], digit);
        bytes[i]            = _mm512_maskz_cvtepi32_epi8(0xffff, digit);
      });
      const __m128i low = _mm_unpacklo_epi32(bytes[0], bytes[1]), low2 = _mm_unpacklo_epi32(bytes[2], bytes[2]);
      const __m128i high = _mm_unpackhi_epi32(bytes[0], bytes[1]), high2 = _mm_unpackhi_epi32(bytes[2], bytes[2]);
      std::int32_t* const to = this->q_digits_ + (d / 4 * R + r) * digits;
      constexpr int column   = R * digits;
      _mm_mask_storeu_epi32(to, 7, _mm_unpacklo_epi64(low, low2));
      _mm_mask_storeu_epi32(to + column, 7, _mm_unpackhi_epi64(low, low2));
      _mm_mask_storeu_epi32(to + 2 * column, 7, _mm_unpacklo_epi64(high, high2));
      _mm_mask_storeu_epi32(to + 3 * column, 7, _mm_unpackhi_epi64(high, high2));
    }
    for (int i = 0; i < digits; ++i) starts()[r * digits + i] = -128 * _mm512_reduce_add_epi32(sum[i]);
  }

  [[gnu::always_inline]] static __m512 power_of_two(int of) {
    return _mm512_castsi512_ps(_mm512_set1_epi32((127 + of) << 23));
  }

  /// Transposes dims d .. d + count of 16 tokens: [columns][tile_tokens][4 dims]. Part: there are fewer than 64.
  template <bool Part>
  [[gnu::noinline, gnu::flatten]] void transpose(int token, int d, int count) {
    const T* const* const row = this->rows_->key + token;
    const int at              = d / this->per_element;
    std::int8_t* const to     = this->bytes_ + (d * tile_tokens + token * 4);
    __m512i x[16];
    for_constants<16>([&](auto t) PAGODA_ISA_CODE {
      x[t] = _mm512_xor_si512(Base::template load_bytes<Part>(row[t] + at, count), _mm512_set1_epi8(-128));
    });
    for_constants<4>([&](auto i)
                         PAGODA_ISA_CODE { transpose_quads(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]); });
    for_constants<4>([&](auto i) PAGODA_ISA_CODE {
      transpose_quarters(x[i], x[4 + i], x[8 + i], x[12 + i]);
      for_constants<4>([&](auto q)
                           PAGODA_ISA_CODE { _mm512_storeu_si512(to + (4 * q + i) * tile_tokens * 4, x[4 * q + i]); });
    });
  }

  /// Transposes 4 by 4 elements in each quarter of four registers.
  [[gnu::always_inline]] static void transpose_quads(__m512i& a, __m512i& b, __m512i& c, __m512i& d) {
    const __m512i ab = _mm512_unpacklo_epi32(a, b), ab2 = _mm512_unpackhi_epi32(a, b);
    const __m512i cd = _mm512_unpacklo_epi32(c, d), cd2 = _mm512_unpackhi_epi32(c, d);
    a = _mm512_unpacklo_epi64(ab, cd), b = _mm512_unpackhi_epi64(ab, cd);
    c = _mm512_unpacklo_epi64(ab2, cd2), d = _mm512_unpackhi_epi64(ab2, cd2);
  }
  /// Transposes the quarters of four registers.
  [[gnu::always_inline]] static void transpose_quarters(__m512i& a, __m512i& b, __m512i& c, __m512i& d) {
    const __m512i ab = _mm512_shuffle_i32x4(a, b, 0x44), ab2 = _mm512_shuffle_i32x4(a, b, 0xee);
    const __m512i cd = _mm512_shuffle_i32x4(c, d, 0x44), cd2 = _mm512_shuffle_i32x4(c, d, 0xee);
    a = _mm512_shuffle_i32x4(ab, cd, 0x88), b = _mm512_shuffle_i32x4(ab, cd, 0xdd);
    c = _mm512_shuffle_i32x4(ab2, cd2, 0x88), d = _mm512_shuffle_i32x4(ab2, cd2, 0xdd);
  }

  /// Scores of H times 16 tokens. Each column prefetches H lines of the next tokens.
  template <int H>
  [[gnu::noinline, gnu::flatten]] void add_keys(int first) {
    constexpr int products = R * digits;
    __m512i sum[H][products];
    for_constants<products>([&](auto i) PAGODA_ISA_CODE {
      for_constants<H>([&](auto h) PAGODA_ISA_CODE { sum[h][i] = _mm512_set1_epi32(starts()[i]); });
    });
    const std::int8_t* x       = this->bytes_ + first * 4;
    const std::int32_t* q      = this->q_digits_;
    const T* const* const next = this->rows_->key + (tile_tokens + first);
    for (int c = 0, end = (this->head_dim_ + 3) / 4; c < end; ++c, x += tile_tokens * 4, q += products) {
      __m512i key[H];
      for_constants<H>([&](auto h) PAGODA_ISA_CODE {
        Base::template prefetch_dims<64>(next[h * 16 + c % 16] + c / 16 * (64 / this->per_element), c / 16 * 64);
        key[h] = _mm512_loadu_si512(x + h * 64);
      });
      for_constants<products>([&](auto i) PAGODA_ISA_CODE {
        for_constants<H>([&](auto h) PAGODA_ISA_CODE { add_bytes(sum[h][i], key[h], q + i); });
      });
    }
    for_constants<H>([&](auto h) PAGODA_ISA_CODE {
      __m512i score[R];
      for_constants<R>([&](auto r) PAGODA_ISA_CODE {
        __m512 s = _mm512_maskz_cvtepi32_ps(0xffff, sum[h][r * digits + digits - 1]);
        for_constants<digits - 1>([&](auto i) PAGODA_ISA_CODE {
          const __m512 lower = _mm512_maskz_cvtepi32_ps(0xffff, sum[h][r * digits + digits - 2 - i]);
          s                  = _mm512_fmadd_ps(s, _mm512_set1_ps(256), lower);
        });
        score[r] = _mm512_castps_si512(_mm512_mul_ps(s, _mm512_set1_ps(query_units()[r])));
      });
      store_scores(score, this->s_ + (first + h * 16) * R);
    });
  }

  /// Stores the scores of 16 tokens: [token][R].
  [[gnu::always_inline]] static void store_scores(__m512i (&x)[R], Acc* to) {
    for_constants<R / 4>([&](auto i)
                             PAGODA_ISA_CODE { transpose_quads(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]); });
    for_constants<R / 4>([&](auto i) PAGODA_ISA_CODE {
      // Register 4 s + j now holds rows 4 s .. 4 s + 4 of tokens j, 4 + j, 8 + j and 12 + j.
      constexpr int j = R == 4 ? 0 : 2 * i, other = R == 4 ? 1 : 4;
      __m512i a = x[j], b = x[j + other], c = x[R == 4 ? 2 : j + 1], d = x[R == 4 ? 3 : j + 5];
      transpose_quarters(a, b, c, d);
      Acc* const at = to + 16 * i;
      _mm512_storeu_si512(at, a), _mm512_storeu_si512(at + 4 * R, b);
      _mm512_storeu_si512(at + 8 * R, c), _mm512_storeu_si512(at + 12 * R, d);
    });
  }

  /// Adds the products of unsigned bytes x and the four signed bytes at q, to each lane.
  [[gnu::always_inline]] static void add_bytes(__m512i& sum, __m512i x, const std::int32_t* q) {
    __m512i added = sum;
    asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(added) : "v"(x), "m"(*q));
    sum = added;
  }
#endif
};

}  // namespace pagoda::detail::PAGODA_ISA
PAGODA_ISA_END
