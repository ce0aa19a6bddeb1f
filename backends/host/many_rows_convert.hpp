// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/row_formats.hpp>
#include <pagoda/types.hpp>

#include "backends/host/many_rows_tile.hpp"
#include "backends/host/simd_vec.hpp"

#include <algorithm>
#include <cstddef>

PAGODA_ISA_BEGIN
namespace pagoda::detail::PAGODA_ISA {

/// Converts rows of a cache of T to floats, scaled, for ManyRowsTile.
template <class T>
struct ManyRowsConversion {
  static constexpr int width  = simd_bytes / int(sizeof(float));
  static constexpr int block  = 2 * width;
  static constexpr int tokens = ManyRowsTile::tile_tokens;
  using Vec                   = SimdVec<float, width>;

  /// Transposes squares of tokens and dims. Behind the last token, a block repeats its row; these scores are not used.
  [[gnu::flatten]] static void keys(const CacheRows<T>& rows, int count, int dims, float* to) {
    const int stride = padded(dims, ManyRowsTile::max_width);
    for (int n = 0; n < padded(count, block); n += width) {
      float* const column = to + (std::size_t(n / block * block) * stride + n % block);
      for (int d = 0; d < dims; d += width) {
        Vec x[width];
        for_constants<width>([&](auto i) PAGODA_ISA_CODE { x[i] = load(rows, std::min(n + i, count - 1), d, dims); });
        transpose<width / 2>(x);
        for_constants<width>([&](auto i) PAGODA_ISA_CODE { x[i].store(column + (d + i) * block); });
      }
    }
  }

  /// Dims behind the last are zeros.
  [[gnu::flatten]] static void values(const CacheRows<T>& rows, int count, int dims, float* to) {
    for (int d = 0; d < padded(dims, block); d += width) {
      float* const column = to + (std::size_t(d / block * block) * tokens + d % block);
      for (int n = 0; n < count; ++n) (d < dims ? load(rows, n, d, dims) : Vec::all(0)).store(column + n * block);
    }
  }

 private:
  /// Dims d .. d + width of row n, scaled.
  static Vec load(const CacheRows<T>& rows, int n, int d, [[maybe_unused]] int dims) {
    const T* const row = rows.row[n];
    Vec x;
    if constexpr (has_row_format_v<T>) {
      return Vec::load_from_row(row, d);
    } else {
      const T* const from = row + d / dims_per_element_v<T>;
      x                   = d + width <= dims ? Vec::load(from) : Vec::load_part(from, dims - d);
    }
    if constexpr (block_dims_v<T> > 0) {
      const auto* const scale = static_cast<const block_scale_t<T>*>(rows.blocks[n]);
      x.multiply(Vec::all(static_cast<float>(scale[std::size_t(d / block_dims_v<T>) * rows.block_step])));
    } else if constexpr (has_scale_arrays_v<T>) {
      x.multiply(Vec::all(rows.scale[n]));
    }
    return x;
  }

  /// Transposes a square of vectors: swaps halves, then quarters, and so on.
  template <int H>
  static void transpose(Vec (&x)[width]) {
    if constexpr (H > 0) {
      for_constants<width>([&](auto i) PAGODA_ISA_CODE {
        if constexpr ((i & H) == 0) Vec::template exchange<H>(x[i], x[i + H]);
      });
      transpose<H / 2>(x);
    }
  }
};

}  // namespace pagoda::detail::PAGODA_ISA
PAGODA_ISA_END
