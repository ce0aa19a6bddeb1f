// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/host/amx_fragment.hpp"
#include "backends/host/amx_instructions.hpp"
#include "backends/host/simd_output.hpp"

#include <cstdint>
#include <cstring>

PAGODA_ISA_BEGIN
namespace pagoda::detail::PAGODA_ISA {

/// What AmxCode does. Tile registers: 0 and 1 are scores, 2 and 3 operands of 16 rows, 4 and 5 probabilities, 6 and 7
/// sums of weighted values. With R = 16 the probabilities of half a tile fill two registers, of which 0 and 1 are the
/// second.
template <class T, int R>
struct Products {
  using Tile                   = AmxTile<T, R>;
  static constexpr int columns = Tile::columns;
  static constexpr int halves  = Tile::halves;

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
        const __m512i x = _mm512_loadu_si512(static_cast<const bfloat16_t*>(row.data) + row.at + d);
        _mm512_i32scatter_epi32(to, at, x, 4);
        continue;
      }
      float x[Tile::chunk_dims];
      row.load(d, Tile::chunk_dims, x);
      __m512 low[2];
      __m256i half[2];
      for (int i = 0; i < 2; ++i) {
        const __m512 y = _mm512_loadu_ps(x + 16 * i);
        half[i]        = rounded(y);
        low[i]         = _mm512_sub_ps(y, widened(half[i]));
      }
      _mm512_i32scatter_epi32(to, at, _mm512_inserti64x4(_mm512_castsi256_si512(half[0]), half[1], 1), 4);
      if (t.parts == 1) continue;
      for (int i = 0; i < 2; ++i) half[i] = rounded(low[i]);
      _mm512_i32scatter_epi32(to + part, at, _mm512_inserti64x4(_mm512_castsi256_si512(half[0]), half[1], 1), 4);
    }
  }

  // ---- rows of the cache

  /// Prefetches as much of the next tile as a tile register holds.
  [[gnu::always_inline]] static void prefetch(Tile& t) {
    for (std::int64_t left = 1024; left > 0;) {
      if (t.near >= t.near_end) {
        if (t.run == t.num_runs) return;
        t.start_run();
      }
      _mm_prefetch(t.near, _MM_HINT_T0);
      left -= std::min<std::int64_t>(Tile::prefetch_step, t.near_end - t.near);
      t.near += Tile::prefetch_step;
    }
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
        copy_row(half.even ? t.value(half, h, 0) + n * t.args.v_token : t.value(half, h, n), dims, to);
      } else {
        std::memset(static_cast<void*>(to), 0, dims * sizeof(T));
      }
    }
    return {reinterpret_cast<const char*>(first), std::int64_t(dims * sizeof(T))};
  }

  // ---- scores

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
        prefetch(t);
        if constexpr (Two) {
          tile_load<2>(k1.at + 64 * c, k1.stride);
          tile_multiply<1, 2, 3>();
          prefetch(t);
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
  static void score_any(Tile& t, int first, int end, float* to) {
    t.used_halves() == 2 ? score_heads<true>(t, first, end, to) : score_heads<false>(t, first, end, to);
  }

  static void multiply_keys(Tile& t) {
    configure(t);
    const int first = t.first_head(), end = first + t.heads_of_set();
    t.careful ? score_apart(t, first, end) : score_any(t, first, end, t.scores);
    const __m512 factor = _mm512_loadu_ps(t.factor + t.set() * columns);
    for (int n = 0; n < t.count; ++n)
      _mm512_store_ps(t.scores + n * columns, _mm512_mul_ps(_mm512_load_ps(t.scores + n * columns), factor));
    for (int n = t.count; n < t.used_halves() * Tile::half_tokens; ++n)
      _mm512_store_ps(t.scores + n * columns, _mm512_set1_ps(-Tile::infinity));
  }

  /// Scores of each head alone.
  [[gnu::noinline]] static void score_apart(Tile& t, int first, int end) {
    alignas(64) float one[Tile::tile_tokens * columns];
    for (int h = first; h < end; ++h) {
      score_any(t, h, h + 1, one);
      const auto own = static_cast<__mmask16>(((1u << R) - 1) << (h - first) * R);
      for (int n = 0; n < t.count; ++n)
        _mm512_mask_store_ps(t.scores + n * columns, own, _mm512_load_ps(one + n * columns));
    }
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
    for (int i = 0; i < t.used_halves(); ++i) {
      __m512i p[16];
#pragma GCC unroll 16
      for (int n = 0; n < 16; ++n) {
        const __m512 e = exp2(_mm512_sub_ps(_mm512_load_ps(s + (16 * i + n) * columns), base));
        sum            = _mm512_add_ps(sum, e);
        // Rounds to bfloat16, to nearest. The bits of e are at most those of the NaN that the products give.
        p[n] = _mm512_add_epi32(_mm512_castps_si512(e), _mm512_set1_epi32(0x8000));
      }
      transpose(p);
      std::uint32_t* to = t.weights + i * R * 32;
#pragma GCC unroll 16
      for (int c = 0; c < columns; ++c) {
        std::uint32_t* const row = to + (c / R * halves * R + c % R) * 32;
        _mm512_store_si512(row, _mm512_srli_epi32(p[c], 16));
        _mm512_store_si512(row + 16, _mm512_and_si512(p[c], _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
      }
    }
    _mm512_storeu_ps(t.sum + at, sum);
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
    float* o       = t.output + std::int64_t(t.first_head()) * R * dims;
    for (int c = 0; c < t.heads_of_set() * R; ++c, o += dims) {
      if (factor[c] == 1.0f) continue;
      const __m512 f = _mm512_set1_ps(factor[c]);
      for (int d = 0; d < dims; d += 16) _mm512_storeu_ps(o + d, _mm512_mul_ps(_mm512_loadu_ps(o + d), f));
    }
  }

  // ---- values

  static void multiply_values(Tile& t) {
    const int first = t.first_head(), end = first + t.heads_of_set();
    for (int h = first; h < end; ++h) {
      const std::uint32_t apart = t.careful ? not_finite(t, h) : 0;
      t.used_halves() == 2 ? weigh_values<true>(t, h, apart) : weigh_values<false>(t, h, apart);
      if (apart != 0) [[unlikely]]
        add_apart(t, h, apart);
    }
  }

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
        prefetch(t);
        if constexpr (Two) {
          tile_load<3>(v1.at + 64 * c, v1.stride);
          tile_multiply<6, 5, 3>();
          tile_multiply<7, 1, 3>();
          prefetch(t);
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
    prefetch(t);
    if constexpr (Two) {
      tile_load<3>(v1.at + 64 * c, v1.stride);
      tile_multiply<Sum, 5, 3>();
      prefetch(t);
    }
  }

  static const T* value_of(const Tile& t, int n, int h) {
    const auto& half = t.here[n / Tile::half_tokens];
    const int i      = n % Tile::half_tokens;
    return half.even ? t.value(half, h, 0) + i * t.args.v_token : t.value(half, h, i);
  }
  static bool is_hidden(const Tile& t, int n, int column) { return t.scores[n * columns + column] == -Tile::infinity; }

  /// The tokens whose value has a NaN or an infinity: a bit for each.
  [[gnu::noinline]] static std::uint32_t not_finite(const Tile& t, int h) {
    const __m512i whole = _mm512_set1_epi16(0x7f80);
    std::uint32_t bits  = 0;
    for (int n = 0; n < t.count; ++n) {
      const T* const v = value_of(t, n, h);
      __mmask32 bad    = 0;
      for (int d = 0; d < t.head_dim_v; d += Tile::chunk_dims)
        bad |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(_mm512_loadu_si512(v + d), whole), whole);
      bits |= static_cast<std::uint32_t>(bad != 0) << n;
    }
    return bits;
  }

  /// Adds the weighted values of these tokens to the rows that see them.
  [[gnu::noinline]] static void add_apart(const Tile& t, int h, std::uint32_t tokens) {
    const int dims = t.head_dim_v, column = (h - t.first_head()) * R;
    for (int n = 0; n < t.count; ++n) {
      if ((tokens >> n & 1u) == 0) continue;
      const T* const v = value_of(t, n, h);
      for (int r = 0; r < R; ++r) {
        if (is_hidden(t, n, column + r)) continue;
        const int i = n / Tile::half_tokens;
        float p;
        std::memcpy(&p, t.weights + (((h - t.first_head()) * halves + i) * R + r) * 32 + 16 + n % Tile::half_tokens,
                    sizeof(p));
        float* const o = t.output + (std::int64_t(h) * R + r) * dims;
        for (int d = 0; d < dims; ++d) o[d % 2 * (dims / 2) + d / 2] += p * static_cast<float>(v[d]);
      }
    }
  }

  /// Whether a sum or an output is NaN, and the tiles have not been processed carefully yet. Then nothing is kept of
  /// what was processed.
  static bool repeats(Tile& t) {
    if (t.careful) return false;
    __mmask16 nan = 0;
    for (int i = 0; i < t.sets_of(t.heads) * columns; i += 16) nan |= nan_of(t.sum + i);
    for (int i = 0; i < t.heads * R * t.head_dim_v; i += 16) nan |= nan_of(t.output + i);
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

  /// Stores the states and puts even and odd dims in order.
  static void finish(Tile& t) {
    const int dims     = t.head_dim_v;
    const __m512i low  = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    float* const copy  = reinterpret_cast<float*>(t.copies);
    for (int h = 0; h < t.heads; ++h)
      for (int r = 0; r < R; ++r) {
        const int at        = h / Tile::set_heads * columns + h % Tile::set_heads * R + r;
        t.states[h * R + r] = {t.most[at], t.sum[at]};
        float* const o      = t.output + (std::int64_t(h) * R + r) * dims;
        std::memcpy(copy, o, dims * sizeof(float));
        for (int d = 0; d < dims / 2; d += 16) {
          const __m512 even = _mm512_loadu_ps(copy + d), odd = _mm512_loadu_ps(copy + dims / 2 + d);
          _mm512_storeu_ps(o + 2 * d, _mm512_permutex2var_ps(even, low, odd));
          _mm512_storeu_ps(o + 2 * d + 16, _mm512_permutex2var_ps(even, high, odd));
        }
      }
    if (t.entered) tile_release();
    t.entered = false;
  }
};

}  // namespace pagoda::detail::PAGODA_ISA
PAGODA_ISA_END
