// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/host/amx_fragment.hpp"
#include "backends/host/amx_instructions.hpp"

#include <cstdint>
#include <cstring>

PAGODA_ISA_BEGIN
namespace pagoda::detail::PAGODA_ISA {

/// Products of keys and values that are NaN or infinite, without tiles: zeros of one row times a NaN of another would
/// be NaN. Only tiles that are processed again come here (AmxFragment::repeats). Operands: DirectOperands or
/// ConvertedOperands.
template <class T, int R, class Operands>
struct NotFinite {
  using Tile                   = AmxTile<T, R>;
  static constexpr int columns = Tile::columns;

  static const T* key_of(const Tile& t, int n, int h) {
    return t.key(t.here[n / Tile::half_tokens], h, n % Tile::half_tokens);
  }
  static const T* value_of(const Tile& t, int n, int h) {
    return t.value(t.here[n / Tile::half_tokens], h, n % Tile::half_tokens);
  }
  static bool is_hidden(const Tile& t, int n, int column) { return t.scores[n * columns + column] == -Tile::infinity; }

  static bool has(const T* row, int dims) {
    constexpr int nan_or_infinity = 0x99;
    __mmask16 bad                 = 0;
    for (int d = 0; d < dims; d += 16) bad |= _mm512_fpclass_ps_mask(Operands::load(row, d), nan_or_infinity);
    return bad != 0;
  }

  /// The tokens whose value for a head has a NaN or an infinity: a bit for each.
  [[gnu::noinline]] static std::uint32_t values(const Tile& t, int h) {
    std::uint32_t bits = 0;
    for (int n = 0; n < t.count; ++n) bits |= std::uint32_t(has(value_of(t, n, h), t.head_dim_v)) << n;
    return bits;
  }

  /// Computes the scores of each token that has such a key in a head of the set.
  [[gnu::noinline]] static void score(Tile& t, int first, int end) {
    for (int n = 0; n < t.count; ++n) {
      bool any = false;
      for (int h = first; h < end; ++h) any = any || has(key_of(t, n, h), t.head_dim);
      if (!any) continue;
      for (int h = first; h < end; ++h)
        for (int r = 0; r < R; ++r) {
          const int column               = (h - first) * R + r;
          t.scores[n * columns + column] = score_of(t, h, column, key_of(t, n, h));
        }
    }
  }

  /// Adds the weighted values of these tokens to the rows that see them.
  [[gnu::noinline]] static void add(const Tile& t, int h, std::uint32_t tokens) {
    const int head = h - t.first_head();
    alignas(64) float x[16];
    for (int n = 0; n < t.count; ++n) {
      if ((tokens >> n & 1u) == 0) continue;
      for (int d = 0; d < t.head_dim_v; d += 16) {
        _mm512_store_ps(x, Operands::load(value_of(t, n, h), d));
        for (int r = 0; r < R; ++r)
          if (!is_hidden(t, n, head * R + r))
            for (int i = 0; i < 16; ++i) Operands::output(t, h, r, d + i) += Operands::weight(t, head, r, n) * x[i];
      }
    }
  }

 private:
  static float score_of(const Tile& t, int h, int column, const T* key) {
    const int chunks             = t.head_dim / Tile::chunk_dims;
    const std::uint32_t* const q = t.queries + h * Tile::query_elements(t.head_dim);
    alignas(64) float x[16];
    float sum = 0;
    for (int d = 0; d < t.head_dim; ++d) {
      if (d % 16 == 0) _mm512_store_ps(x, Operands::load(key, d));
      const int c = d / Tile::chunk_dims, i = d % Tile::chunk_dims;
      float y = 0;
      for (int part = 0; part < t.parts; ++part) {
        const std::uint32_t word = q[(part * chunks + c) * Tile::tile_floats + Operands::pair_of(i) * columns + column];
        const std::uint32_t bits = Operands::side_of(i) == 0 ? word << 16 : word & 0xffff0000u;
        float z;
        std::memcpy(&z, &bits, sizeof(z));
        y += z;
      }
      sum += y * x[d % 16];
    }
    return sum;
  }
};

}  // namespace pagoda::detail::PAGODA_ISA
PAGODA_ISA_END
