// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/host/amx_converted.hpp"
#include "backends/host/amx_direct.hpp"
#include "backends/host/amx_fragment.hpp"
#include "backends/host/amx_instructions.hpp"
#include "backends/host/amx_not_finite.hpp"
#include "backends/host/simd_output.hpp"

#include <cstdint>
#include <cstring>
#include <type_traits>

PAGODA_ISA_BEGIN
namespace pagoda::detail::PAGODA_ISA {

/// What AmxCode does, apart from the operands of tile registers.
template <class T, int R>
struct Products {
  using Tile                   = AmxTile<T, R>;
  using Operands               = std::conditional_t<Tile::converts, ConvertedOperands<T, R>, DirectOperands<T, R>>;
  using Apart                  = NotFinite<T, R, Operands>;
  static constexpr int columns = Tile::columns;

  static void configure(Tile& t) {
    if (t.entered) return;
    TileShapes shapes;
    for (int i = 0; i < 8; ++i) {
      shapes.row_bytes[i] = 64;
      shapes.rows[i]      = i < 4 || R > 8 ? 16 : 2 * R;
    }
    tile_configure(shapes);
    t.entered = true;
  }

  // ---- queries

  static __m256i rounded(__m512 x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd  = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i up   = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    // A NaN may carry into the sign.
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(_mm512_srli_epi32(up, 16), nan, _mm512_set1_epi32(0x7fc0)));
  }
  static __m512 widened(__m256i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16)); }

  static void load_query(Tile& t, int r, const QueryRow& row, float scale) {
    const int chunks                     = t.head_dim / Tile::chunk_dims;
    const int part                       = chunks * Tile::tile_floats;
    std::uint32_t* const first           = t.queries + t.head * Tile::query_elements(t.head_dim);
    const int column                     = t.first_column() + r;
    t.factor[t.set() * columns + column] = scale;
    if (r == 0) std::memset(first, 0, sizeof(std::uint32_t) * t.parts * part);
    if (!row.data) return;
    const __m512i at = _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                                          _mm512_set1_epi32(columns));
    for (int c = 0; c < chunks; ++c) {
      std::uint32_t* const to = first + c * Tile::tile_floats + column;
      const int d             = c * Tile::chunk_dims;
      if (t.parts == 1 && row.stride == 1) {
        const auto* const from =
            reinterpret_cast<const __m256i*>(static_cast<const bfloat16_t*>(row.data) + row.at + d);
        const __m512i x = Operands::pair_up(_mm256_loadu_si256(from), _mm256_loadu_si256(from + 1));
        _mm512_i32scatter_epi32(to, at, x, 4);
        continue;
      }
      float x[Tile::chunk_dims];
      row.load(d, Tile::chunk_dims, x);
      __m512 rest[2] = {_mm512_loadu_ps(x), _mm512_loadu_ps(x + 16)};
      for (int p = 0; p < t.parts; ++p) {
        __m256i half[2];
        for (int i = 0; i < 2; ++i) {
          half[i] = rounded(rest[i]);
          rest[i] = _mm512_sub_ps(rest[i], widened(half[i]));
        }
        _mm512_i32scatter_epi32(to + p * part, at, Operands::pair_up(half[0], half[1]), 4);
      }
    }
  }

  // ---- scores

  static void multiply_keys(Tile& t) {
    configure(t);
    const int first = t.first_head(), end = first + t.heads_of_set();
    t.used_halves() == 2 ? Operands::template score_heads<true>(t, first, end, t.scores)
                         : Operands::template score_heads<false>(t, first, end, t.scores);
    if (t.careful) [[unlikely]]
      Apart::score(t, first, end);
    const __m512 factor = _mm512_loadu_ps(t.factor + t.set() * columns);
    for (int n = 0; n < t.count; ++n) {
      __m512 x = _mm512_mul_ps(_mm512_load_ps(t.scores + n * columns), factor);
      if constexpr (Tile::scaled)
        if (t.args.k_scale.per_token()) x = _mm512_mul_ps(x, scales_of(t, t.k_scales, n));
      _mm512_store_ps(t.scores + n * columns, x);
    }
    for (int n = t.count; n < t.used_halves() * Tile::half_tokens; ++n)
      _mm512_store_ps(t.scores + n * columns, _mm512_set1_ps(-Tile::infinity));
  }

  /// The scales of token n in the columns of the set.
  [[gnu::always_inline]] static __m512 scales_of(const Tile& t, const float* scales, int n) {
    constexpr int heads     = Tile::set_heads;
    const __m512i column    = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const float* const from = scales + (t.set() * Tile::tile_tokens + n) * heads;
    const __m512 x          = _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << heads) - 1), from);
    return _mm512_maskz_permutexvar_ps(0xffff, _mm512_srli_epi32(column, R == 16 ? 4 : R == 8 ? 3 : R == 4 ? 2 : 0), x);
  }

  // ---- softmax

  /// The online softmax of a set, in base 2. The maximum is raised only where a score exceeds it by more than 8: until
  /// then probabilities are up to 2^8, and sums and values need no new factor.
  static void softmax(Tile& t) {
    const int at = t.set() * columns, tokens = t.used_halves() * Tile::half_tokens;
    const float* const s = t.scores;
    __m512 x = _mm512_load_ps(s), y = _mm512_load_ps(s + columns);
    const __m512 lowest = _mm512_set1_ps(-Tile::infinity);
    x = _mm512_max_ps(x, lowest), y = _mm512_max_ps(y, lowest);  // the second operand, if the first is NaN
    for (int n = 2; n < tokens; n += 2) {
      x = _mm512_max_ps(_mm512_load_ps(s + n * columns), x);
      y = _mm512_max_ps(_mm512_load_ps(s + (n + 1) * columns), y);
    }
    x           = _mm512_max_ps(x, y);
    __m512 most = _mm512_loadu_ps(t.most + at), sum = _mm512_loadu_ps(t.sum + at);
    if (_mm512_cmp_ps_mask(x, _mm512_add_ps(most, _mm512_set1_ps(8.0f)), _CMP_GT_OQ) != 0) {
      const __m512 raised = _mm512_max_ps(most, x);
      const __m512 kept   = exp2(_mm512_sub_ps(most, finite_or_zero(raised)));
      sum                 = _mm512_mul_ps(sum, kept);
      rescale(t, kept);
      most = raised;
      _mm512_storeu_ps(t.most + at, most);
    }
    const __m512 base = finite_or_zero(most);
    if (t.used_halves() == 2) {
      sum = weigh_half<true>(t, 0, base, sum);
      sum = weigh_half<true>(t, 1, base, sum);
    } else {
      sum = weigh_half<false>(t, 0, base, sum);
    }
    _mm512_storeu_ps(t.sum + at, sum);
  }

  /// Stores the probabilities of half a tile, times the scales of their values. Returns their sum without scales.
  /// Two: the tile has two halves.
  template <bool Two>
  [[gnu::always_inline]] static __m512 weigh_half(Tile& t, int i, __m512 base, __m512 sum) {
    const float* const s = t.scores + i * Tile::half_tokens * columns;
    __m512i p[16];
#pragma GCC unroll 16
    for (int n = 0; n < 16; ++n) {
      const __m512 x = _mm512_load_ps(s + n * columns);
      const __m512 e = exp2(_mm512_sub_ps(x, base));
      sum            = _mm512_add_ps(sum, e);
      p[n]           = _mm512_castps_si512(e);
    }
    if constexpr (Tile::scaled)
      if (t.args.v_scale.per_token()) {
        for (int n = 0; n < 16; ++n) {
          // Zeros stay zeros: the scale of a hidden token may be NaN.
          const __m512 x      = _mm512_load_ps(s + n * columns);
          const __mmask16 see = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-Tile::infinity), _CMP_NEQ_UQ);
          const __m512 y      = scales_of(t, t.v_scales, i * Tile::half_tokens + n);
          p[n]                = _mm512_castps_si512(_mm512_maskz_mul_ps(see, _mm512_castsi512_ps(p[n]), y));
        }
      }
    transpose(p);
    Operands::template store_weights<Two>(t, i, p);
    return sum;
  }

  static __m512 finite_or_zero(__m512 x) {
    const __mmask16 none = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-Tile::infinity), _CMP_EQ_OQ);
    return _mm512_mask_mov_ps(x, none, _mm512_setzero_ps());
  }

  /// Multiplies the weighted values of the set.
  [[gnu::noinline]] static void rescale(Tile& t, __m512 kept) {
    alignas(64) float factor[16];
    _mm512_store_ps(factor, kept);
    const int dims = t.head_dim_v;
    for (int c = 0; c < t.heads_of_set() * R; ++c) {
      if (factor[c] == 1.0f) continue;
      const __m512 f = _mm512_set1_ps(factor[c]);
      for (int j = 0; j < Tile::sums; ++j) {
        float* const o = t.output + ((std::int64_t(t.first_head() + c / R) * Tile::sums + j) * R + c % R) * dims;
        for (int d = 0; d < dims; d += 16) _mm512_storeu_ps(o + d, _mm512_mul_ps(_mm512_loadu_ps(o + d), f));
      }
    }
  }

  // ---- values

  static void multiply_values(Tile& t) {
    const int first = t.first_head(), end = first + t.heads_of_set();
    std::uint32_t apart[Tile::set_heads] = {};
    if (t.careful) [[unlikely]]
      for (int h = first; h < end; ++h) apart[h - first] = Apart::values(t, h);
    t.used_halves() == 2 ? Operands::template weigh_heads<true>(t, first, end, apart)
                         : Operands::template weigh_heads<false>(t, first, end, apart);
    if (t.careful) [[unlikely]]
      for (int h = first; h < end; ++h) Apart::add(t, h, apart[h - first]);
  }

  /// Whether a sum or an output is NaN, and the tiles have not been processed carefully yet. Then nothing is kept of
  /// what was processed.
  static bool repeats(Tile& t) {
    if (t.careful) return false;
    __mmask16 nan = 0;
    for (int i = 0; i < t.sets_of(t.heads) * columns; i += 16) nan |= nan_of(t.sum + i);
    for (int i = 0; i < static_cast<int>(t.output_elements()); i += 16) nan |= nan_of(t.output + i);
    if (nan == 0) [[likely]]
      return false;
    t.careful = true;
    t.next    = 0;
    t.clear();
    return true;
  }
  static __mmask16 nan_of(const float* at) {
    const __m512 x = _mm512_loadu_ps(at);
    return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  }

  /// Stores the states, and puts the sums in order.
  static void finish(Tile& t) {
    for (int h = 0; h < t.heads; ++h)
      for (int r = 0; r < R; ++r) {
        const int at        = h / Tile::set_heads * columns + h % Tile::set_heads * R + r;
        t.states[h * R + r] = {t.most[at], t.sum[at]};
      }
    Operands::order(t);
    if (t.entered) tile_release();
    t.entered = false;
  }
};

}  // namespace pagoda::detail::PAGODA_ISA
PAGODA_ISA_END
