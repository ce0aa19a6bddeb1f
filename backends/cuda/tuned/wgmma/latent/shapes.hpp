// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/wgmma/shapes.hpp"

/// Latent caches, whose values are the first dims of the keys: shapes, as data.
namespace pagoda::tuned::wgmma::latent {

inline constexpr int head_dim = 576, head_dim_v = 512;
inline constexpr int stages  = 2;  ///< tiles in shared memory: as many as there is room for
inline constexpr int threads = 4 * 128;

inline constexpr int eight      = eight_bytes(head_dim);
inline constexpr int tile_bytes = tokens / 8 * eight;
inline constexpr int q_bytes    = rows / 8 * eight;

/// Blocks that share the query rows of a kv head.
constexpr int together(int rows_of_head) { return rows_of_head > rows ? 2 : 1; }

inline constexpr int blocks_per_sm = 1;
/// A tile takes 2.0 us in dealt rows and 2.3 us in a stream (128 heads, 128 x 4096, H200).
inline constexpr double stream_factor = 1.1;
constexpr Pace pace(const Device& d) { return {tile_bytes, d.speed.latent_tile_us, blocks_per_sm, stream_factor}; }

/// Offsets in a block's shared memory.
struct Shared {
  static constexpr int q             = 0;
  static constexpr int tiles         = q + q_bytes;
  static constexpr int probabilities = tiles + stages * tile_bytes;        ///< [rows][tokens]
  static constexpr int states        = probabilities + rows * tokens * 2;  ///< float2 [2][rows]
  static constexpr int base          = states + 2 * rows * 8;              ///< float [rows]
  static constexpr int kept          = base + rows * 4;                    ///< float [rows]
  static constexpr int signs         = kept + rows * 4;                    ///< int [4], of Sign
  static constexpr int ended         = signs + 4 * 4;                      ///< Ended
  static constexpr int debts         = ended + 4 * 4;                      ///< Debt [2]
  static constexpr int barriers      = debts + 2 * 4 * 4;
  // Barriers, eight bytes each.
  static constexpr int q_full = 0, q_empty = 1, p_full = 2, state_full = 3, state_empty = 4;
  static constexpr int p_empty  = 5;              ///< [2]: after even and odd tiles
  static constexpr int turn     = p_empty + 2;    ///< [2]
  static constexpr int full     = turn + 2;       ///< [stages]
  static constexpr int empty    = full + stages;  ///< [stages][quarters]: of 16 tokens
  static constexpr int quarters = tokens / 16;
  static constexpr int count    = empty + stages * quarters;
  static constexpr int bytes    = barriers + 8 * count;
};

}  // namespace pagoda::tuned::wgmma::latent
