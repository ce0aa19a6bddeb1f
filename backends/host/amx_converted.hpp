// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/host/amx_fragment.hpp"
#include "backends/host/amx_instructions.hpp"
#include "backends/host/simd_quantized.hpp"

#include <cstdint>
#include <cstring>

PAGODA_ISA_BEGIN
namespace pagoda::detail::PAGODA_ISA {

/// The operands of tile registers from quantized caches, whose elements are numbers of bfloat16 too. The rows of one
/// head are converted while those of the head before it are multiplied: tile loads do not take data from stores that
/// are still in flight.
///   - Scores: 16 tokens by 32 dims are the first operand. A pair is dims d and d + 16 of a chunk of 32.
///   - Values: 32 tokens by 16 dims are the second operand. A pair is tokens n and n + 16.
///   - Probabilities are the sum of two numbers of bfloat16. Those are different rows of the first operand, and their
///     sums of weighted values are added at the end. So the second number costs no more instructions, except if R = 16.
///
/// Tile registers: 0 and 1 are scores, 2 and 3 operands of 16 rows, 4 probabilities, 6 and 7 sums of weighted values.
/// With R = 16, 4 and 6 are of the first of two numbers, 5 and 7 of the second.
template <class T, int R>
struct ConvertedOperands {
  using Tile                      = AmxTile<T, R>;
  static constexpr int tile       = 2 * Tile::tile_floats;  ///< elements of a tile register
  static constexpr int block_dims = 16;                     ///< dims of values in a tile register

  /// Pairs of dims of a chunk of a query, from its first and its last 16 dims.
  static __m512i pair_up(__m256i low, __m256i high) { return pairs_of(low, high); }
  /// Where pair_up puts dim d of a chunk: the pair, and which of the pair.
  static int pair_of(int d) { return d % 16; }
  static int side_of(int d) { return d / 16; }

  /// Dims d .. d + 16 of a row.
  [[gnu::always_inline]] static __m512 load(const T* row, int d) { return load_quantized(row + d / Tile::per_element); }
  /// Stores pairs of a and b, which bfloat16 holds exactly.
  [[gnu::always_inline]] static void store_pairs(__m512 a, __m512 b, bfloat16_t* to) {
    _mm512_store_si512(to, upper_halves(_mm512_castps_si512(a), _mm512_castps_si512(b)));
  }

  static bfloat16_t* buffer(const Tile& t, int h) {
    return t.copies + (h % 2) * Tile::copy_elements(t.head_dim > t.head_dim_v ? t.head_dim : t.head_dim_v);
  }

  /// Converts chunk c of the keys of half a tile.
  [[gnu::always_inline]] static void convert_keys(Tile& t, int i, int h, int c) {
    const auto& half = t.here[i];
    bfloat16_t* to   = buffer(t, h) + (c * Tile::halves + i) * tile;
    const int d      = c * Tile::chunk_dims;
    if (half.even) [[likely]] {
      const T* row            = t.key(half, h, 0);
      const std::int64_t step = t.args.k_token;
#pragma GCC unroll 4
      for (int n = 0; n < Tile::half_tokens; ++n, row += step, to += 32)
        store_pairs(load(row, d), load(row, d + 16), to);
    } else {
      for (int n = 0; n < half.tokens; ++n, to += 32) {
        const T* const row = t.key(half, h, n);
        store_pairs(load(row, d), load(row, d + 16), to);
      }
    }
    t.prefetch(Tile::tile_floats * 2 * sizeof(T) / Tile::per_element);
  }

  /// Converts 16 dims of the values of a tile. Slots without a token, and the tokens whose bit is set in `without`, are
  /// zeros: a probability of 0 times NaN is NaN.
  template <bool Two>
  [[gnu::always_inline]] static void convert_values(Tile& t, int h, int b, std::uint32_t without) {
    const auto &first = t.here[0], &second = t.here[1];
    bfloat16_t* to = buffer(t, h) + b * tile;
    const int d    = b * block_dims;
    if (first.even && (!Two || second.even) && without == 0) [[likely]] {
      const T *row0 = t.value(first, h, 0), *row1 = Two ? t.value(second, h, 0) : row0;
      const std::int64_t step = t.args.v_token;
#pragma GCC unroll 4
      for (int n = 0; n < Tile::half_tokens; ++n, row0 += step, row1 += step, to += 32)
        store_pairs(load(row0, d), Two ? load(row1, d) : _mm512_setzero_ps(), to);
    } else {
      const auto any = [&](int n) PAGODA_ISA_CODE {
        const auto& half = t.here[n / Tile::half_tokens];
        const int i      = n % Tile::half_tokens;
        return n < t.count && (without >> n & 1u) == 0 ? load(t.value(half, h, i), d) : _mm512_setzero_ps();
      };
      for (int n = 0; n < Tile::half_tokens; ++n, to += 32) store_pairs(any(n), any(n + Tile::half_tokens), to);
    }
    t.prefetch(Tile::tile_floats * 2 * sizeof(T) / Tile::per_element);
  }

  /// Scores of heads first .. end, in their columns of `to`.
  template <bool Two>
  static void score_heads(Tile& t, int first, int end, float* to) {
    const int chunks   = t.head_dim / Tile::chunk_dims;
    const auto convert = [&](int h, int c) PAGODA_ISA_CODE {
      convert_keys(t, 0, h, c);
      if constexpr (Two) convert_keys(t, 1, h, c);
    };
    for (int c = 0; c < chunks; ++c) convert(first, c);
    tile_zero<0>();
    if constexpr (Two) tile_zero<1>();
    for (int h = first; h < end; ++h) {
      const bfloat16_t* const k    = buffer(t, h);
      const std::uint32_t* const q = t.queries + h * Tile::query_elements(t.head_dim);
      for (int c = 0; c < chunks; ++c) {
        for (int part = 0; part < t.parts; ++part) {
          tile_load<3>(q + (part * chunks + c) * Tile::tile_floats, 64);
          tile_load<2>(k + c * Tile::halves * tile, 64);
          tile_multiply<0, 2, 3>();
          if constexpr (Two) {
            tile_load<2>(k + (c * Tile::halves + 1) * tile, 64);
            tile_multiply<1, 2, 3>();
          }
        }
        if (h + 1 < end) convert(h + 1, c);
      }
    }
    tile_store<0>(to, 64);
    if constexpr (Two) tile_store<1>(to + 256, 64);
  }

  /// Stores the probabilities of half a tile, p[column][token], as [set_heads][2][R][16]: pairs of tokens n and n + 16,
  /// of the first and of the second number. Two: the tile has two halves, of which this is the i-th.
  template <bool Two>
  [[gnu::always_inline]] static void store_weights(Tile& t, int i, __m512i (&p)[16]) {
    std::uint32_t* const kept = t.weights + Tile::tile_tokens * Tile::columns;
    const __m512i upper       = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    const auto rest           = [&](__m512i x) PAGODA_ISA_CODE {
      const __m512 first = _mm512_castsi512_ps(_mm512_and_si512(x, upper));
      const __m512 y     = _mm512_sub_ps(_mm512_castsi512_ps(x), first);
      return _mm512_add_epi32(_mm512_castps_si512(y), _mm512_set1_epi32(0x8000));
    };
#pragma GCC unroll 16
    for (int c = 0; c < Tile::columns; ++c) {
      if (Two && i == 0) {
        _mm512_store_si512(kept + c * 16, p[c]);
        continue;
      }
      const __m512i x = Two ? _mm512_load_si512(kept + c * 16) : p[c], y = Two ? p[c] : _mm512_setzero_si512();
      std::uint32_t* const row = t.weights + (c / R * 2 * R + c % R) * 16;
      _mm512_store_si512(row, upper_halves(x, y));
      _mm512_store_si512(row + R * 16, upper_halves(rest(x), Two ? rest(y) : y));
    }
  }
  /// The probability of token n in row r of the set's h-th head.
  static float weight(const Tile& t, int h, int r, int n) {
    float p = 0;
    for (int j = 0; j < 2; ++j) {
      const std::uint32_t word = t.weights[((h * 2 + j) * R + r) * 16 + n % 16],
                          bits = n < 16 ? word << 16 : word & 0xffff0000u;
      float x;
      std::memcpy(&x, &bits, sizeof(x));
      p += x;
    }
    return p;
  }
  /// Where the sum of dim d of a row is added.
  static float& output(const Tile& t, int h, int r, int d) {
    return t.output[(std::int64_t(h) * 2 * R + r) * t.head_dim_v + d];
  }

  /// Adds the weighted values of the heads of the set. without: the tokens of each head that are left out.
  template <bool Two>
  static void weigh_heads(Tile& t, int first, int end, const std::uint32_t* without) {
    const int dims = t.head_dim_v, blocks = dims / block_dims;
    const std::int64_t row = dims * std::int64_t(sizeof(float));
    for (int b = 0; b < blocks; ++b) convert_values<Two>(t, first, b, without[0]);
    for (int h = first; h < end; ++h) {
      const bfloat16_t* const v    = buffer(t, h);
      float* const o               = t.output + std::int64_t(h) * 2 * R * dims;
      const std::uint32_t* const w = t.weights + (h - first) * 2 * R * 16;
      tile_load<4>(w, 64);
      if constexpr (R > 8) tile_load<5>(w + R * 16, 64);
      for (int b = 0; b < blocks; b += 2) {
        if constexpr (R > 8) {
          for (int j = b; j < b + 2; ++j) {
            tile_load<6>(o + j * block_dims, row);
            tile_load<7>(o + R * dims + j * block_dims, row);
            weigh_block<6, 4, true>(v + j * tile);
            tile_store<6>(o + j * block_dims, row);
            tile_store<7>(o + R * dims + j * block_dims, row);
          }
        } else {
          tile_load<6>(o + b * block_dims, row);
          tile_load<7>(o + (b + 1) * block_dims, row);
          weigh_block<6, 4, false>(v + b * tile);
          weigh_block<7, 4, false>(v + (b + 1) * tile);
          tile_store<6>(o + b * block_dims, row);
          tile_store<7>(o + (b + 1) * block_dims, row);
        }
        if (h + 1 == end) continue;
        convert_values<Two>(t, h + 1, b, without[h + 1 - first]);
        convert_values<Two>(t, h + 1, b + 1, without[h + 1 - first]);
      }
    }
  }

  /// Adds the sums of the two numbers of a probability. Sums are [heads][2][R][head_dim_v].
  static void order(Tile& t) {
    const int n = R * t.head_dim_v;
    for (int h = 0; h < t.heads; ++h) {
      float* const o = t.output + std::int64_t(h) * 2 * n;
      for (int i = 0; i < n; i += 16)
        _mm512_storeu_ps(o + i, _mm512_add_ps(_mm512_loadu_ps(o + i), _mm512_loadu_ps(o + n + i)));
    }
  }

 private:
  /// Both: the second numbers of the probabilities have registers of their own, the next ones.
  template <int Sum, int P, bool Both>
  [[gnu::always_inline]] static void weigh_block(const bfloat16_t* v) {
    tile_load<2>(v, 64);
    tile_multiply<Sum, P, 2>();
    if constexpr (Both) tile_multiply<Sum + 1, P + 1, 2>();
  }
};

}  // namespace pagoda::detail::PAGODA_ISA
PAGODA_ISA_END
