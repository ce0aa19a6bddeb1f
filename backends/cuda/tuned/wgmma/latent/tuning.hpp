// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/wgmma/tuning.hpp"

/// Latent caches, whose values are the first dims of the keys: block shapes, as data.
namespace pagoda::tuned::wgmma::latent {

inline constexpr int head_dim = 576, head_dim_v = 512;
inline constexpr int stages  = 2;  ///< tiles in shared memory, the most that fit
inline constexpr int threads = 4 * 128;

inline constexpr int bytes_of_8 = bytes_of_8_tokens(head_dim);
inline constexpr int tile_bytes = tile_tokens / 8 * bytes_of_8;
inline constexpr int q_bytes    = tile_rows / 8 * bytes_of_8;

/// Tiles are multiplied in bf16, otherwise in fp16.
template <Type T>
inline constexpr bool is_bf16 = T != Type::fp16;
/// Tiles are copied as they lie in memory, through tensor maps. Otherwise the warps that multiply make them of rows:
/// those of fp8_ds_mla, and where eight tokens may lie in several pages.
template <Type T, class Args>
inline constexpr bool copies_tiles = T != Type::fp8_ds_mla && !Args::small_pages;

/// Blocks that share the query rows of a kv head.
constexpr int blocks_per_head(int rows_of_head) { return rows_of_head > tile_rows ? 2 : 1; }

inline constexpr int blocks_per_sm = 1;
/// A tile takes 2.0 us in equal splits and 2.3 us in stream-K (128 heads, 128 x 4096, H200).
inline constexpr double stream_factor = 1.1;
constexpr Pace pace(Type type, const Device& d) {
  return {tile_tokens * row_bytes(type, head_dim), d.speed.latent_tile_us, blocks_per_sm, stream_factor};
}

/// Offsets in a block's shared memory.
struct SharedLayout {
  static constexpr int q             = 0;
  static constexpr int tiles         = q + q_bytes;
  static constexpr int probabilities = tiles + stages * tile_bytes;                  ///< [row][token]
  static constexpr int states        = probabilities + tile_rows * tile_tokens * 2;  ///< float2 [2][row]
  static constexpr int running_max   = states + 2 * tile_rows * 8;                   ///< float [row]
  static constexpr int corrections   = running_max + tile_rows * 4;                  ///< float [row]
  static constexpr int flags         = corrections + tile_rows * 4;                  ///< int [4], TileFlags of a warp
  static constexpr int finished      = flags + 4 * 4;                                ///< FinishedSegment
  static constexpr int pending       = finished + 4 * 4;                             ///< PendingJoin [2]
  static constexpr int barriers      = pending + 2 * 4 * 4;                          ///< 8 bytes each
  static constexpr int received      = q;  ///< the other block's results, after the last products with queries
};

/// What each warp that adds values receives from the other block of a pair. 17 float4 of each lane: the states of two
/// rows, and a quarter of their dims.
inline constexpr int exchanged_bytes = (1 + paired_dims / 8) * 32 * 16;
static_assert(8 * exchanged_bytes <= q_bytes && paired_dims == head_dim_v / 4);

/// Barriers, by index.
struct Barriers {
  static constexpr int q_full = 0, q_empty = 1;
  static constexpr int p_full      = 2;  ///< probabilities of a tile
  static constexpr int states_full = 3, states_empty = 4;
  static constexpr int p_empty    = 5;              ///< [2]: after even and after odd tiles
  static constexpr int max_ready  = p_empty + 2;    ///< [2]: the running maximum covers an even, an odd tile
  static constexpr int full       = max_ready + 2;  ///< [stages]
  static constexpr int empty      = full + stages;  ///< [stages][quarters]
  static constexpr int quarters   = tile_tokens / 16;
  static constexpr int pair_ready = empty + stages * quarters;  ///< the other block has no more use for its queries
  static constexpr int received   = pair_ready + 1;             ///< [8]: what a warp of the other block sends
  static constexpr int count      = received + 8;
};

inline constexpr int shared_bytes = SharedLayout::barriers + 8 * Barriers::count;

}  // namespace pagoda::tuned::wgmma::latent
