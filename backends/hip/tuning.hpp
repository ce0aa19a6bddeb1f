// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Tuning of the kernels for AMD GPUs, as data. tests/hip compares the limits with what the compiler made.
namespace pagoda::detail::hip {

/// Tuning of MfmaFragment for rows of up to dim_tile dims and 16 row_tiles query rows.
struct MfmaTuning {
  int dim_tile, row_tiles;
  int token_blocks;  ///< runs of 16 tokens in a tile
  int part_rows;     ///< query rows whose states lie in LDS together at the end; two teams must fit 64 KB
  /// Waves that must fit the registers of a SIMD, in the kernels without options and in those with. A wave has 8 to
  /// 16 KB of loads in flight; 14 KB for each compute unit would hide the latency on MI300X.
  int waves_per_simd, general_waves_per_simd;
};

/// A tile has 4 to 8 KB of keys and as many of values.
inline constexpr MfmaTuning mfma_tunings[] = {
    {64, 1, 2, 16, 2, 1}, {64, 2, 2, 16, 2, 1}, {128, 1, 1, 8, 2, 1}, {128, 2, 1, 8, 2, 1}, {256, 1, 1, 4, 2, 1},
};

constexpr MfmaTuning mfma_tuning(int dim_tile, int row_tiles) {
  for (const MfmaTuning& t : mfma_tunings)
    if (t.dim_tile == dim_tile && t.row_tiles == row_tiles) return t;
  return {};
}

}  // namespace pagoda::detail::hip
