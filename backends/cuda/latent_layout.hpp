// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/kernel/join.hpp"

#include <pagoda/row_formats.hpp>
#include <pagoda/types.hpp>

namespace pagoda::detail {

/// Layout of the fragments for latent caches of T in the team's scratch: tiles of 16 tokens, then the sums of the first
/// product, the probabilities of 16-bit types, and the factors of query rows. At the end the values and states of
/// part_rows rows replace the tiles. Sizes and offsets are in bytes unless stated otherwise.
template <class T, int RowGroups>
struct LatentLayout {
  static constexpr bool packed  = has_row_format_v<T>;  ///< rows of fp8_ds_mla; otherwise of 16-bit elements
  static constexpr int key_dims = 576, value_dims = 512;
  static constexpr int rows        = 16 * RowGroups;
  static constexpr int part_rows   = 16;
  static constexpr int tile_tokens = 16;
  static constexpr int warps       = 4;
  static constexpr int row_bytes   = packed ? row_format_of(dtype_v<T>).bytes : key_dims * 2;
  static constexpr int tile_bytes  = tile_tokens * row_bytes;
  static constexpr int tiles       = packed ? 3 : 2;      ///< one that is multiplied, and those that are being copied
  static constexpr int sums_at     = tiles * tile_bytes;  ///< floats, [warp][row][token]
  /// Probabilities as an operand of the second product. Those of fp8_ds_mla are floats, which replace the first sums.
  static constexpr int p_at         = sums_at + warps * rows * tile_tokens * 4;
  static constexpr int kept_at      = p_at + (packed ? 0 : rows * tile_tokens * 2);
  static constexpr int factors_at   = kept_at + rows * 4;  ///< floats, powers of two: factors of the queries
  static constexpr int highest_at   = factors_at + (packed ? rows * 4 : 0);  ///< for each warp, see DsMlaScales
  static constexpr int all_bytes    = highest_at + (packed ? warps * 4 : 0);
  static constexpr int value_stride = value_dims + 8;  ///< floats; four rows' pairs lie in different banks
  static constexpr int states_at    = part_rows * value_stride * 4;
  static_assert(states_at + rows * static_cast<int>(sizeof(RowState<float>)) <= p_at);

  /// Quads of an output row.
  struct RowQuads {
    static constexpr int value = value_dims / 4;
    KOKKOS_FUNCTION static constexpr int divide(int n) { return n / value; }
  };
};

}  // namespace pagoda::detail
