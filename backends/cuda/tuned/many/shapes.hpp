// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/tuning.hpp"

#include <algorithm>
#include <cstdint>

/// Many query rows to a kv head, by products of warpgroups (sm_90a): latent caches, whose values are the first dims of
/// the keys. Shapes, and what they are tuned to, as data and pure functions.
namespace pagoda::tuned::many {

inline constexpr int head_dim = 576, head_dim_v = 512;
inline constexpr int rows    = 64;  ///< of a block: what a product of a warpgroup has
inline constexpr int tokens  = 64;  ///< of a tile
inline constexpr int stages  = 2;   ///< tiles in shared memory: as many as there is room for
inline constexpr int threads = 4 * 128;

inline constexpr int run_bytes  = 1024;  ///< 64 dims of eight rows, as the tensor maps' swizzle leaves them
inline constexpr int runs       = head_dim / 64;
inline constexpr int eight      = runs * run_bytes;  ///< bytes of eight tokens: what one copy brings
inline constexpr int tile_bytes = tokens / 8 * eight;
inline constexpr int q_bytes    = rows / 8 * eight;

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

/// A part of a row in device memory: the products' accumulators as they are, in units of 16 rows and 16 dims. A lane
/// has two float4 of each: dims 2 column and the next of its row, of the row eight below, and the same eight dims on.
/// Behind them are a unit's states, so that whoever joins units reads nothing that another one reads.
inline constexpr int unit_quads       = 2 * 32 + 8;  ///< values, and for eight pairs of rows the two states
inline constexpr int units_of_16_rows = head_dim_v / 16;
PAGODA_HOST_DEVICE constexpr std::int64_t part_quads(int part_rows) {
  return std::int64_t(part_rows / 16) * units_of_16_rows * unit_quads;
}
/// Rows of a part, with those that fill up the last 16.
constexpr int part_rows(int group) { return (std::min(group, rows) + 15) / 16 * 16; }

inline constexpr int quads = head_dim_v / 4;

/// Blocks that share the rows of a kv head.
constexpr int together(int group) { return group > rows ? 2 : 1; }
inline constexpr int most_rows = 2 * rows;

/// What a tile takes, in microseconds: its two products, or its share of the memory. Cutting a batch as one stream
/// costs more: rows begin within a block's share and end there, and their parts are joined. Measured on an H200.
inline constexpr double tile_us = 1.5, memory_bytes_per_us = 4.488e6, cut_us = 3, stream_us = 3;

struct Shape {
  int teams;   ///< that run at the same time, of blocks that share rows
  int pieces;  ///< of each row (batch entry and kv head)
  bool streams;
};

/// So many rows as they are dealt, or one stream. tiles: of the longest there may be.
constexpr Shape spread(std::int64_t count, std::int64_t tiles, int together, const Device& d) {
  const int teams = d.num_sms / together;
  const auto us   = [&](double each, double busy) {
    return each * std::max(tile_us, busy * tile_bytes / memory_bytes_per_us);
  };
  count = std::max<std::int64_t>(count, 1), tiles = std::max<std::int64_t>(tiles, 1);
  const std::int64_t pieces = std::clamp<std::int64_t>(teams / count, 1, tiles);
  const std::int64_t rounds = (count * pieces - 1) / teams + 1;
  const double dealt        = us(double(rounds) * double((tiles + pieces - 1) / pieces),
                                 double(std::min<std::int64_t>(count * pieces, teams))) +
                       (pieces > 1 ? cut_us : 0.0);
  const double stream = us(double(count) * double(tiles) / teams, teams) + cut_us + stream_us;
  return {teams, static_cast<int>(pieces), stream < dealt};
}
constexpr std::int64_t teams_launched(std::int64_t count, int batch, const Shape& s) {
  const std::int64_t dealt = std::min<std::int64_t>(count * s.pieces, s.teams);
  if (s.streams) return s.teams;
  return batch == 1 ? dealt : detail::teams_launched(dealt, s.teams);
}

}  // namespace pagoda::tuned::many
