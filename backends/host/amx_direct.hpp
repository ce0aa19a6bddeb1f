// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/host/amx_fragment.hpp"
#include "backends/host/amx_instructions.hpp"

#include <cstdint>
#include <cstring>

PAGODA_ISA_BEGIN
namespace pagoda::detail::PAGODA_ISA {

/// The operands of tile registers, straight from a cache of bfloat16:
///   - Scores: 16 tokens by 32 dims are the first operand. The queries of a set of kv heads are the second: pairs of
///     adjacent dims by 16 columns.
///   - Values: 16 tokens by 32 dims are the second operand. The instruction adds the products of pairs of its 16-bit
///     elements, and here a pair is two dims of one token. So each row of probabilities is there twice: as (p, 0),
///     which gives the even dims, and as (0, p), which gives the odd dims.
/// If 16 tokens do not lie at equal distances, or there are fewer, their rows are copied first.
///
/// Tile registers: 0 and 1 are scores, 2 and 3 operands of 16 rows, 4 and 5 probabilities, 6 and 7 sums of weighted
/// values. With R = 16 the probabilities of half a tile fill two registers, of which 0 and 1 are the second.
template <class T, int R>
struct DirectOperands {
  using Tile                  = AmxTile<T, R>;
  static constexpr int halves = Tile::halves;

  /// Pairs of dims of a chunk of a query, from its first and its last 16 dims.
  static __m512i pair_up(__m256i low, __m256i high) { return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1); }
  /// Where pair_up puts dim d of a chunk: the pair, and which of the pair.
  static int pair_of(int d) { return d / 2; }
  static int side_of(int d) { return d % 2; }

  static __m512 load(const T* row, int d) {
    const auto* const from = reinterpret_cast<const __m256i*>(row + d);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(from)), 16));
  }

  struct Rows {
    const char* at;
    std::int64_t stride;  ///< bytes
  };

  static void copy_row(const T* from, int dims, T* to) {
    for (int d = 0; d < dims; d += Tile::chunk_dims) _mm512_storeu_si512(to + d, _mm512_loadu_si512(from + d));
  }

  /// The keys of half a tile for a head.
  static Rows keys(const Tile& t, int i, int h) {
    const auto& half = t.here[i];
    if (half.even) [[likely]]
      return {reinterpret_cast<const char*>(t.key(half, h, 0)), std::int64_t(t.args.k_token * sizeof(T))};
    T* const to = t.copies + i * Tile::half_tokens * t.head_dim;
    for (int n = 0; n < half.tokens; ++n) copy_row(t.key(half, h, n), t.head_dim, to + n * t.head_dim);
    return {reinterpret_cast<const char*>(to), std::int64_t(t.head_dim * sizeof(T))};
  }
  /// The values of half a tile for a head. Slots without a token, and the tokens whose bit is set in `without`, are
  /// zeros: a probability of 0 times NaN is NaN.
  static Rows values(const Tile& t, int i, int h, std::uint32_t without) {
    const auto& half = t.here[i];
    if (half.even && without == 0) [[likely]]
      return {reinterpret_cast<const char*>(t.value(half, h, 0)), std::int64_t(t.args.v_token * sizeof(T))};
    const int dims = t.head_dim_v;
    T* const first = t.copies + i * Tile::half_tokens * dims;
    for (int n = 0; n < Tile::half_tokens; ++n) {
      T* const to = first + n * dims;
      if (n < half.tokens && (without >> n & 1u) == 0) {
        copy_row(t.value(half, h, n), dims, to);
      } else {
        std::memset(static_cast<void*>(to), 0, dims * sizeof(T));
      }
    }
    return {reinterpret_cast<const char*>(first), std::int64_t(dims * sizeof(T))};
  }

  /// Scores of heads first .. end, in their columns of `to`.
  template <bool Two>
  static void score_heads(Tile& t, int first, int end, float* to) {
    const int chunks = t.head_dim / Tile::chunk_dims;
    tile_zero<0>();
    if constexpr (Two) tile_zero<1>();
    for (int h = first; h < end; ++h) {
      const Rows k0 = keys(t, 0, h), k1 = Two ? keys(t, 1, h) : k0;
      const std::uint32_t* q = t.queries + h * Tile::query_elements(t.head_dim);
      for (int c = 0; c < chunks; ++c) {
        tile_load<3>(q + c * Tile::tile_floats, 64);
        tile_load<2>(k0.at + 64 * c, k0.stride);
        tile_multiply<0, 2, 3>();
        t.prefetch(1024);
        if constexpr (Two) {
          tile_load<2>(k1.at + 64 * c, k1.stride);
          tile_multiply<1, 2, 3>();
          t.prefetch(1024);
        }
      }
      if (t.parts == 1) continue;
      q += chunks * Tile::tile_floats;
      for (int c = 0; c < chunks; ++c) {
        tile_load<3>(q + c * Tile::tile_floats, 64);
        tile_load<2>(k0.at + 64 * c, k0.stride);
        tile_multiply<0, 2, 3>();
        if constexpr (Two) {
          tile_load<2>(k1.at + 64 * c, k1.stride);
          tile_multiply<1, 2, 3>();
        }
      }
    }
    tile_store<0>(to, 64);
    if constexpr (Two) tile_store<1>(to + 256, 64);
  }

  /// Stores the probabilities of half a tile, p[column][token], as [set_heads][halves][R][2][16]: pairs (p, 0), (0, p).
  template <bool>
  [[gnu::always_inline]] static void store_weights(Tile& t, int i, __m512i (&p)[16]) {
    std::uint32_t* const to = t.weights + i * R * 32;
#pragma GCC unroll 16
    for (int c = 0; c < Tile::columns; ++c) {
      // Rounds to bfloat16, to nearest. The bits of p are at most those of the NaN that the products give.
      const __m512i x          = _mm512_add_epi32(p[c], _mm512_set1_epi32(0x8000));
      std::uint32_t* const row = to + (c / R * halves * R + c % R) * 32;
      _mm512_store_si512(row, _mm512_srli_epi32(x, 16));
      _mm512_store_si512(row + 16, _mm512_and_si512(x, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
    }
  }
  /// The probability of token n in row r of the set's h-th head.
  static float weight(const Tile& t, int h, int r, int n) {
    const int i = n / Tile::half_tokens;
    float p;
    std::memcpy(&p, t.weights + ((h * halves + i) * R + r) * 32 + 16 + n % Tile::half_tokens, sizeof(p));
    return p;
  }
  /// Where the sum of dim d of a row is added.
  static float& output(const Tile& t, int h, int r, int d) {
    const int dims = t.head_dim_v;
    return t.output[(std::int64_t(h) * R + r) * dims + d % 2 * (dims / 2) + d / 2];
  }

  /// Adds the weighted values of the heads of the set. without: the tokens of each head that are left out.
  template <bool Two>
  static void weigh_heads(Tile& t, int first, int end, const std::uint32_t* without) {
    for (int h = first; h < end; ++h) weigh_values<Two>(t, h, without[h - first]);
  }

  /// Puts even and odd dims in order. Sums are [heads][R][2][head_dim_v / 2]: even dims, then odd dims.
  static void order(Tile& t) {
    const int dims     = t.head_dim_v;
    const __m512i low  = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    float* const copy  = reinterpret_cast<float*>(t.copies);
    for (int n = 0; n < t.heads * R; ++n) {
      float* const o = t.output + std::int64_t(n) * dims;
      std::memcpy(copy, o, dims * sizeof(float));
      for (int d = 0; d < dims / 2; d += 16) {
        const __m512 even = _mm512_loadu_ps(copy + d), odd = _mm512_loadu_ps(copy + dims / 2 + d);
        _mm512_storeu_ps(o + 2 * d, _mm512_permutex2var_ps(even, low, odd));
        _mm512_storeu_ps(o + 2 * d + 16, _mm512_permutex2var_ps(even, high, odd));
      }
    }
  }

 private:
  template <bool Two>
  static void weigh_values(Tile& t, int h, std::uint32_t without) {
    const Rows v0 = values(t, 0, h, without & 0xffffu), v1 = Two ? values(t, 1, h, without >> 16) : v0;
    const int chunks             = t.head_dim_v / Tile::chunk_dims;
    const std::int64_t row       = t.head_dim_v / 2 * sizeof(float);
    float* const o               = t.output + std::int64_t(h) * R * t.head_dim_v;
    const std::uint32_t* const p = t.weights + (h - t.first_head()) * halves * R * 32;
    tile_load<4>(p, 64);
    if constexpr (Two) tile_load<5>(p + R * 32, 64);
    if constexpr (R > 8) {
      tile_load<0>(p + 256, 64);
      if constexpr (Two) tile_load<1>(p + R * 32 + 256, 64);
      float* const second = o + 8 * t.head_dim_v;
      for (int c = 0; c < chunks; ++c) {
        tile_load<6>(o + 16 * c, row);
        tile_load<2>(v0.at + 64 * c, v0.stride);
        tile_multiply<6, 4, 2>();
        tile_load<7>(second + 16 * c, row);
        tile_multiply<7, 0, 2>();
        t.prefetch(1024);
        if constexpr (Two) {
          tile_load<3>(v1.at + 64 * c, v1.stride);
          tile_multiply<6, 5, 3>();
          tile_multiply<7, 1, 3>();
          t.prefetch(1024);
        }
        tile_store<6>(o + 16 * c, row);
        tile_store<7>(second + 16 * c, row);
      }
    } else {
      int c = 0;
      for (; c + 2 <= chunks; c += 2) {
        weigh_chunk<6, Two>(t, v0, v1, c, o, row);
        weigh_chunk<7, Two>(t, v0, v1, c + 1, o, row);
        tile_store<6>(o + 16 * c, row);
        tile_store<7>(o + 16 * c + 16, row);
      }
      if (c < chunks) {
        weigh_chunk<6, Two>(t, v0, v1, c, o, row);
        tile_store<6>(o + 16 * c, row);
      }
    }
  }
  template <int Sum, bool Two>
  [[gnu::always_inline]] static void weigh_chunk(Tile& t, const Rows& v0, const Rows& v1, int c, float* o,
                                                 std::int64_t row) {
    tile_load<Sum>(o + 16 * c, row);
    tile_load<2>(v0.at + 64 * c, v0.stride);
    tile_multiply<Sum, 4, 2>();
    t.prefetch(1024);
    if constexpr (Two) {
      tile_load<3>(v1.at + 64 * c, v1.stride);
      tile_multiply<Sum, 5, 3>();
      t.prefetch(1024);
    }
  }
};

}  // namespace pagoda::detail::PAGODA_ISA
PAGODA_ISA_END
