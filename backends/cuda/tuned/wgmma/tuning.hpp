// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/common/cost_model.hpp"

#include <algorithm>
#include <cstdint>

/// Common to both kernels for many query rows, as data and pure functions. These kernels multiply with warpgroups
/// (sm_90a). They are for more than 8 query rows (heads of a group times query tokens) that share a kv head, and for
/// latent caches. The folders `latent` and `grouped` have the shapes of each.
namespace pagoda::tuned::wgmma {

inline constexpr int tile_rows   = 64;  ///< query rows of a warpgroup's products
inline constexpr int tile_tokens = 64;
inline constexpr int max_rows    = 2 * tile_rows;

/// What starting and ending a batch head costs in stream-K, in tiles of a block.
inline constexpr int stream_price_tiles = 2;

/// Instances of a kernel for batches.
enum class Instance {
  equal,       ///< every entry has the same number of query tokens
  ragged,      ///< entries have different numbers of query tokens
  in_passes,   ///< a batch entry takes several passes (passes.hpp)
  small_pages  ///< pages of any number of tokens, any numbers of query tokens
};
inline constexpr Instance all_instances[] = {Instance::equal, Instance::ragged, Instance::in_passes,
                                             Instance::small_pages};

inline constexpr int run_bytes = 1024;  ///< 64 dims of eight rows, in the tensor maps' swizzled layout
/// Tokens that one copy loads.
inline constexpr int copy_tokens = 8;
PAGODA_HOST_DEVICE constexpr int bytes_of_8_tokens(int head_dim) { return head_dim / 64 * run_bytes; }

/// A partial result in device memory holds the products' accumulators unchanged, in blocks of 16 rows and 16 dims. A
/// lane has two float4 of each block: dims 2 column and 2 column + 1 of its row and of the row eight below, and the
/// same eight dims further on. The states of the block's rows follow. Each block has its own copy of them, so that no
/// reader of a block reads words that another reader resets.
inline constexpr int block16_quads = 2 * 32 + 8;  ///< float4: values, and the states of eight pairs of rows
PAGODA_HOST_DEVICE constexpr int block16s_per_16_rows(int head_dim_v) { return head_dim_v / 16; }
/// float4 of a partial result, with rows up to a multiple of 16.
constexpr std::int64_t partial_quads(int num_rows, int head_dim_v) {
  return std::int64_t((num_rows + 15) / 16) * block16s_per_16_rows(head_dim_v) * block16_quads;
}

/// Dims of a row that one block of a pair joins, before those of the other block follow.
inline constexpr int paired_dims = 128;

/// Whether blocks form clusters of two, which join their splits before others see them: with an even number of equal
/// splits. blocks: to launch.
constexpr bool forms_pairs(const LaunchShape& shape, std::int64_t blocks) {
  return !shape.stream_k && shape.num_splits % 2 == 0 && blocks % 2 == 0;
}

/// Time of a tile if memory does not delay it, and the number of blocks that run on a multiprocessor.
struct Pace {
  int tile_bytes;
  double tile_us;
  int blocks_per_sm;
  double stream_factor = 1;  ///< time of a tile in stream-K over that of a tile of equal splits
};

/// Chooses between equal splits and stream-K, in which batch heads begin and end within a block's share. tiles: of the
/// longest sequence there may be; blocks_per_head: blocks that share the query rows of a kv head.
constexpr LaunchShape choose_shape(std::int64_t batch_heads, std::int64_t tiles, int blocks_per_head, const Pace& pace,
                                   const Device& d) {
  const int teams = d.num_sms * pace.blocks_per_sm / blocks_per_head;
  // Time of `tiles_each` tiles one after another, while `busy` teams read.
  const auto us = [&](double tiles_each, double busy) {
    return tiles_each * std::max(pace.tile_us, busy * pace.tile_bytes / d.speed.bytes_per_us);
  };
  batch_heads = std::max<std::int64_t>(batch_heads, 1), tiles = std::max<std::int64_t>(tiles, 1);
  const std::int64_t num_splits = splits_that_fit(batch_heads, teams, tiles);
  const std::int64_t rounds     = (batch_heads * num_splits - 1) / teams + 1;
  const std::int64_t split      = (tiles + num_splits - 1) / num_splits;
  const double fixed =
      us(double(rounds) * double(split), double(std::min<std::int64_t>(batch_heads * num_splits, teams))) +
      (num_splits > 1 ? d.speed.wgmma_merge_us : 0.0);
  const double stream = pace.stream_factor * us(double(batch_heads) * double(tiles) / teams, teams) +
                        d.speed.wgmma_merge_us + d.speed.wgmma_stream_us;
  return {teams, static_cast<int>(num_splits), stream < fixed, 0, std::min(fixed, stream)};
}

}  // namespace pagoda::tuned::wgmma
