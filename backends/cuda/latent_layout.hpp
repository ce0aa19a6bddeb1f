// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/kernel/join.hpp"

namespace pagoda::detail {

/// Layout of LatentFragment in the team's scratch: two tiles of 16 tokens of 16-bit elements, then the sums of the
/// first product, the probabilities, and the factors of rows whose maximum is raised. At the end the values and states
/// of part_rows rows replace the tiles. Sizes and offsets are in bytes unless stated otherwise.
template <int RowGroups>
struct LatentLayout {
  static constexpr int key_dims = 576, value_dims = 512;
  static constexpr int rows         = 16 * RowGroups;
  static constexpr int part_rows    = 16;
  static constexpr int tile_tokens  = 16;
  static constexpr int warps        = 4;
  static constexpr int row_bytes    = key_dims * 2;
  static constexpr int tile_bytes   = tile_tokens * row_bytes;
  static constexpr int sums_at      = 2 * tile_bytes;  ///< floats, [warp][row][token]
  static constexpr int p_at         = sums_at + warps * rows * tile_tokens * 4;
  static constexpr int kept_at      = p_at + rows * tile_tokens * 2;
  static constexpr int all_bytes    = kept_at + rows * 4;
  static constexpr int value_stride = value_dims + 8;  ///< floats; four rows' pairs lie in different banks
  static constexpr int states_at    = part_rows * value_stride * 4;
  static_assert(states_at + rows * static_cast<int>(sizeof(RowState<float>)) <= 2 * tile_bytes);

  /// Quads of an output row.
  struct RowQuads {
    static constexpr int value = value_dims / 4;
    KOKKOS_FUNCTION static constexpr int divide(int n) { return n / value; }
  };
};

}  // namespace pagoda::detail
