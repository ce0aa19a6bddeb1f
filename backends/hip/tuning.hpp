// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Tuning of the kernels for AMD GPUs, as data. tests/hip compares the limits with what the compiler made.
namespace pagoda::detail::hip {

/// Tuning of MatrixFragment for keys and values of up to these dims, and 16 row_tiles query rows.
struct MatrixTuning {
  int lanes;  ///< of a wave: 64 is CDNA 2 and 3, 32 is RDNA 3
  int bits;   ///< of an element of the cache
  int key_dims, value_dims, row_tiles;
  int token_blocks;  ///< runs of 16 tokens in a tile
  int part_rows;     ///< query rows whose states lie in LDS together at the end; two teams must fit 64 KB
  /// Waves that must fit the registers of a SIMD, in the kernels without options and in those with. On MI300X, 14 KB of
  /// loads in flight on a compute unit would hide the latency; on RX 7900 XTX, 6 KB.
  int waves_per_simd, general_waves_per_simd;
  /// Keys and values of the next tile are loaded while this one is multiplied. Otherwise they are loaded when they are
  /// needed, one after the other to the same registers, queries lie in LDS, and other waves hide the latency.
  bool loads_ahead;
  /// Bytes of scratch memory that the kernels with options may use. RDNA 3 has 256 registers for a wave, half of
  /// CDNA's, and outputs of 512 dims are a quarter of CDNA's: what the options need lies in scratch memory meanwhile.
  int general_scratch = 0;
  /// The same of the kernels without options, which may use it outside their loop over tiles only.
  int scratch = 0;
};

/// On CDNA a tile has 4 to 8 KB of keys and as many of values (8 bits: 2 to 4 KB, 4 bits: 2 to 4 KB). With one wave on
/// a SIMD, two would not have enough registers. Quantized caches have no rows for 32 query rows: with two waves the
/// registers do not suffice, with one the loads in flight do not.
inline constexpr MatrixTuning matrix_tunings[] = {
    // lanes, bits, key_dims, value_dims, row_tiles, token_blocks, part_rows, waves, general_waves, ahead,
    // general_scratch, scratch
    {64, 16, 64, 64, 1, 2, 16, 2, 1, true},            //
    {64, 16, 64, 64, 2, 2, 16, 2, 1, true},            //
    {64, 16, 128, 128, 1, 1, 8, 2, 1, true},           //
    {64, 16, 128, 128, 2, 1, 8, 2, 1, true},           //
    {64, 16, 256, 256, 1, 1, 4, 2, 1, true},           //
    {64, 16, 576, 512, 1, 1, 2, 1, 1, false, 448},     //
    {64, 8, 64, 64, 1, 2, 16, 2, 1, true},             //
    {64, 8, 128, 128, 1, 2, 8, 2, 1, true},            //
    {64, 8, 256, 256, 1, 1, 4, 1, 1, true},            //
    {64, 4, 128, 128, 1, 2, 8, 2, 1, true},            //
    {64, 4, 256, 256, 1, 1, 4, 2, 1, true},            //
    {32, 16, 64, 64, 1, 1, 16, 5, 4, false, 32},       //
    {32, 16, 128, 128, 1, 1, 8, 5, 4, false, 640},     //
    {32, 8, 64, 64, 1, 1, 16, 6, 4, false, 32},        //
    {32, 8, 128, 128, 1, 1, 8, 5, 4, false, 640, 32},  //
    {32, 4, 128, 128, 1, 1, 8, 5, 4, false, 640},
};

constexpr MatrixTuning matrix_tuning(int lanes, int bits, int key_dims, int row_tiles) {
  for (const MatrixTuning& t : matrix_tunings)
    if (t.lanes == lanes && t.bits == bits && t.key_dims == key_dims && t.row_tiles == row_tiles) return t;
  return {};
}

}  // namespace pagoda::detail::hip
