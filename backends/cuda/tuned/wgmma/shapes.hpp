// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/tuning.hpp"

#include <algorithm>
#include <cstdint>

/// Many query rows to a kv head (heads of a group, several query tokens), by products of warpgroups (sm_90a). What
/// both kernels share; the shapes of each are in `latent` and `grouped`.
namespace pagoda::tuned::wgmma {

inline constexpr int rows   = 64;  ///< of a product of a warpgroup
inline constexpr int tokens = 64;  ///< of a tile

inline constexpr int run_bytes = 1024;  ///< 64 dims of eight rows, as the tensor maps' swizzle leaves them
/// Eight tokens: what one copy brings.
PAGODA_HOST_DEVICE constexpr int eight_bytes(int head_dim) { return head_dim / 64 * run_bytes; }

/// A part of a row in device memory: the products' accumulators as they are, in units of 16 rows and 16 dims. A lane
/// has two float4 of each: dims 2 column and the next of its row, of the row eight below, and the same eight dims on.
/// Behind them are a unit's states, so that whoever joins units reads nothing that another one reads.
inline constexpr int unit_quads = 2 * 32 + 8;  ///< values, and for eight pairs of rows the two states
PAGODA_HOST_DEVICE constexpr int units_of_16_rows(int head_dim_v) { return head_dim_v / 16; }
/// With rows that fill up the last 16.
constexpr std::int64_t part_quads(int rows_of_block, int head_dim_v) {
  return std::int64_t((rows_of_block + 15) / 16) * units_of_16_rows(head_dim_v) * unit_quads;
}

inline constexpr int most_rows = 2 * rows;

/// What a kernel takes: bytes and microseconds of a tile, should memory not hold it up; blocks on a multiprocessor.
struct Pace {
  int tile_bytes;
  double tile_us;
  int blocks_per_sm;
  double stream_factor = 1;  ///< time of a tile in a stream over that of a tile of dealt rows
};

struct Shape {
  int teams;   ///< that run at the same time, of blocks that share rows
  int pieces;  ///< of each row (batch entry and kv head)
  bool streams;
};

/// Chooses between rows as they are dealt and one stream, in which rows begin and end within a block's share. tiles: of
/// the longest row there may be; together: blocks that share the query rows of a kv head.
constexpr Shape spread(std::int64_t count, std::int64_t tiles, int together, const Pace& pace, const Device& d) {
  const int teams = d.num_sms * pace.blocks_per_sm / together;
  const auto us   = [&](double each, double busy) {
    return each * std::max(pace.tile_us, busy * pace.tile_bytes / d.speed.bytes_per_us);
  };
  count = std::max<std::int64_t>(count, 1), tiles = std::max<std::int64_t>(tiles, 1);
  const std::int64_t pieces = std::clamp<std::int64_t>(teams / count, 1, tiles);
  const std::int64_t rounds = (count * pieces - 1) / teams + 1;
  const double dealt        = us(double(rounds) * double((tiles + pieces - 1) / pieces),
                                 double(std::min<std::int64_t>(count * pieces, teams))) +
                       (pieces > 1 ? d.speed.wgmma_merge_us : 0.0);
  const double stream = pace.stream_factor * us(double(count) * double(tiles) / teams, teams) + d.speed.wgmma_merge_us +
                        d.speed.wgmma_stream_us;
  return {teams, static_cast<int>(pieces), stream < dealt};
}
constexpr std::int64_t teams_launched(std::int64_t count, int batch, const Shape& s) {
  const std::int64_t dealt = std::min<std::int64_t>(count * s.pieces, s.teams);
  if (s.streams) return s.teams;
  return batch == 1 ? dealt : detail::teams_launched(dealt, s.teams);
}

}  // namespace pagoda::tuned::wgmma
