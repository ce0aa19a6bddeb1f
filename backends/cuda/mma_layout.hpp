// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/block_scales.hpp"
#include "backends/cuda/e2m1_storage.hpp"
#include "backends/cuda/mma_storage.hpp"
#include "src/base/arithmetic.hpp"
#include "src/kernel/fragment.hpp"
#include "src/kernel/join.hpp"

#include <pagoda/types.hpp>

#include <Kokkos_Core.hpp>

#include <cstdint>

namespace pagoda::detail {

/// Layout of the tiles of MmaFragment in the team's scratch, for rows of up to DimTile dims of T.
///
/// Each worker has `stages` stages of its own, then the converted block scales of one tile. A stage has 16 rows of
/// keys, 16 rows of values, their scales, and with AnyAlignment what realign() needs. After the last tile the worker's
/// states take the place of its stages. Query rows lie behind the parts of all workers.
template <class T, int DimTile, bool AnyAlignment>
struct MmaLayout : FragmentDefaults<T> {
  using FragmentDefaults<T>::scaled;
  using FragmentDefaults<T>::block_dims;
  using Storage                          = MmaStorage<T>;
  using Operand                          = typename Storage::Operand;
  static constexpr int rows              = 8;  ///< query rows
  static constexpr int tile_tokens       = 16;
  static constexpr int scratch_alignment = 512;  ///< the longest row of a tile
  static constexpr bool in_blocks        = block_dims > 0;

 protected:
  static constexpr int chunks     = DimTile / Storage::dims;  ///< chunks of 16 bytes in a row
  static constexpr int copy_lanes = chunks;                   ///< lanes that copy a row together
  static constexpr int copy_rows  = 32 / chunks;              ///< rows that are copied at once
  static constexpr int row_bytes  = 16 * chunks;
  static constexpr int tile_bytes = tile_tokens * row_bytes;
  /// Tiles in flight at a time, each with its own place. Copies in flight hide the memory latency.
  static constexpr int stages = greatest(1, least(4, 8192 / (2 * tile_bytes)));
  /// Words of a row's block scales.
  static constexpr int block_words         = (blocks_of(dtype_v<T>, DimTile) + 3) / 4;
  using BlockCopies                        = BlockScaleCopies<greatest(1, block_words), stages>;
  static constexpr int converted_row_bytes = 8 * block_words;
  /// Scales of keys, then of values.
  static constexpr int scale_bytes  = in_blocks ? BlockCopies::stage_bytes
                                      : scaled  ? 2 * tile_tokens * int(sizeof(float))
                                                : 0;
  static constexpr int row_begins   = 2 * tile_bytes + scale_bytes;  ///< see realign
  static constexpr int row_ends     = row_begins + 2 * tile_tokens * int(sizeof(int));
  static constexpr int stage_bytes  = AnyAlignment ? row_ends + 2 * tile_tokens * 16 : row_begins;
  static constexpr int value_stride = DimTile + 4;  ///< avoids a multiple of 32 banks
  static constexpr int states_at    = rows * value_stride * static_cast<int>(sizeof(float));
  static constexpr int converted_at = stages * stage_bytes;  ///< converted block scales of the current tile
  static constexpr int worker_bytes =
      (greatest<int>(converted_at + 32 * converted_row_bytes, states_at + rows * int(sizeof(RowState<float>))) +
       scratch_alignment - 1) /
      scratch_alignment * scratch_alignment;
  static constexpr int query_chunks = DimTile / 8;
  static constexpr int query_bytes  = rows * 16 * query_chunks;
  static_assert(chunks >= 4 && query_chunks >= 8);
  static constexpr bool lowered        = Storage::lower(0) != 0;  ///< stored values are the numbers plus a constant
  static constexpr bool floating       = !lowered;                ///< values may be infinite or NaN
  static constexpr bool scales_weights = [] {  ///< scales of values are multiplied with probabilities
    if constexpr (in_blocks) return Storage::scales_weights;
    return false;
  }();
  static constexpr float key_factor = [] {  ///< factor from sums of products to scores
    if constexpr (in_blocks) return 1 / Storage::key_unit;
    return 1.0f;
  }();
  /// XOR mask of chunk positions: chunks i of eight rows, at positions i ^ swizzle(row), lie in different banks. For
  /// multiples of copy_rows, swizzle(row + i) is swizzle(row) ^ swizzle(i).
  KOKKOS_FUNCTION static constexpr int swizzle(int row) { return row_bytes >= 128 ? row & 7 : row >> 1 & 3; }
};

}  // namespace pagoda::detail
