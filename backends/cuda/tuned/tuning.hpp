// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/decode.hpp"
#include "src/plan/launched.hpp"

#include <algorithm>
#include <cstdint>

#if defined(__CUDACC__)
#define PAGODA_HOST_DEVICE __host__ __device__
#else
#define PAGODA_HOST_DEVICE
#endif

/// What the kernels are tuned to, as data and pure functions.
namespace pagoda::tuned {

constexpr bool uses_maps(const Device& d) { return d.sm >= 90; }

/// Warps of all blocks of a multiprocessor, at most: each may take 255 registers.
inline constexpr int warps_per_sm = 8;

/// Shared memory of a block on the card that has the most (sm_90).
inline constexpr int most_shared_per_block = 227 * 1024;

/// Offsets in a block's shared memory: rings of all warps, then where they meet.
struct SharedLayout {
  int values, states, barriers, bytes;
};
PAGODA_HOST_DEVICE constexpr SharedLayout shared_layout(int tile_bytes, int head_dim, int group, int warps,
                                                        int stages) {
  SharedLayout l{};
  l.values   = warps * stages * 2 * tile_bytes;
  l.states   = l.values + warps * group * (head_dim + 4) * 4;
  l.barriers = l.states + warps * 8 * 8;
  l.bytes    = l.barriers + warps * stages * 8;
  return l;
}

/// What a block of so many warps takes of a multiprocessor.
struct Block {
  int stages;  ///< of each warp's ring
  int shared;  ///< bytes
  int per_sm;  ///< blocks that run on it at the same time; 0: not even one
};

constexpr Block block_with(int stages, int warps, int tile_bytes, int head_dim, int group, const Device& d) {
  constexpr int reserved = 1024;  // of every block, by the system
  const int bytes        = shared_layout(tile_bytes, head_dim, group, warps, stages).bytes;
  const int fit          = std::min(warps_per_sm / warps, d.shared_per_sm / (bytes + reserved));
  return {stages, bytes, bytes > d.shared_per_block ? 0 : fit};
}

/// A tile of keys and one of values are a stage. So many stages has every warp: what is on its way hides the memory's
/// latency (24 KB a multiprocessor on an H200), and the next tile is there when one has been used. 24 KB a warp (more:
/// sm_90, where tensor maps are), 16 KB where there is less room; and no fewer than three (two) of large tiles, with
/// fewer warps.
constexpr int stages_of(int tile_bytes, bool more) {
  return std::max((more ? 24576 : 16384) / (2 * tile_bytes), more ? 3 : 2);
}

/// Small blocks have the shorter ring where more of them fit with it: rows that all run at once beat rounds of them.
constexpr bool may_have_shorter_ring(int warps) { return warps <= 2; }

constexpr Block block_of(int warps, int tile_bytes, int head_dim, int group, const Device& d) {
  const bool maps     = uses_maps(d);
  const Block shorter = block_with(stages_of(tile_bytes, false), warps, tile_bytes, head_dim, group, d);
  if (!maps) return shorter;
  const Block longer = block_with(stages_of(tile_bytes, true), warps, tile_bytes, head_dim, group, d);
  return may_have_shorter_ring(warps) && shorter.per_sm > longer.per_sm ? shorter : longer;
}

/// How a batch is spread over a device.
struct Shape {
  int warps;     ///< of a block
  int blocks;    ///< that run at the same time
  int pieces;    ///< of each row (batch entry and kv head)
  bool streams;  ///< rows are not dealt but cut as one stream
  double us;     ///< what it is expected to take beyond starting, should all rows be of the length asked for
};

/// Blocks of so many warps that fit the device at the same time.
constexpr int blocks_resident(int warps, int tile_bytes, int head_dim, int group, const Device& d) {
  return d.num_sms * block_of(warps, tile_bytes, head_dim, group, d).per_sm;
}

/// What a choice costs beside the reading, in microseconds, by warps of a block: to join the parts of cut rows, and to
/// cut a batch as one stream. Measured on an H200 (bench/NOTES.md); elsewhere only their order counts.
constexpr double merge_us(int warps) { return warps == 8 ? 1.5 : warps == 4 ? 2.7 : warps == 2 ? 4.1 : 7.5; }
inline constexpr double stream_us = 3.5;

/// Of the memory, while a device reads with all multiprocessors. Four fifths of them read as much.
inline constexpr double bytes_per_us_and_sm = 34000, enough = 0.8;

/// To read so many tiles, two each of keys and values, at the memory's speed.
constexpr double read_us(std::int64_t rows, std::int64_t tiles, int tile_bytes, const Device& d) {
  return static_cast<double>(rows) * static_cast<double>(tiles) * 2 * tile_bytes / (bytes_per_us_and_sm * d.num_sms);
}

/// Rows as they are dealt: whole where there are enough of them, all of them at once where they fit; else in pieces; or
/// as one stream where neither fills the machine. Each is best with blocks of another size. tiles: of the longest row
/// there may be.
constexpr Shape spread(std::int64_t rows, std::int64_t tiles, int tile_bytes, int head_dim, int group,
                       const Device& d) {
  const double read = read_us(rows, tiles, tile_bytes, d);
  Shape best{0, 0, 1, false, 0}, stream{0, 0, 1, true, 1.03 * read + stream_us};
  for (const int warps : {8, 4, 2, 1}) {
    const std::int64_t blocks = blocks_resident(warps, tile_bytes, head_dim, group, d);
    if (blocks == 0) continue;
    if (stream.warps == 0) stream.warps = warps, stream.blocks = static_cast<int>(blocks);
    const std::int64_t most   = std::max<std::int64_t>(tiles / 2, 1);
    const std::int64_t pieces = std::clamp<std::int64_t>(blocks / std::max<std::int64_t>(rows, 1), 1, most);
    const std::int64_t parts = std::max<std::int64_t>(rows * pieces, 1), rounds = (parts - 1) / blocks + 1;
    // A round that fills the machine; the last one may not.
    const double round = read * static_cast<double>(blocks) / static_cast<double>(parts);
    const double last  = static_cast<double>(parts - (rounds - 1) * blocks) / static_cast<double>(blocks);
    // Blocks of later rounds end at unlike times.
    const double rest = rounds > 1 ? 1.02 * static_cast<double>(rounds - 1) + 0.02 : 0.0;
    const double us   = round * (rest + std::max(last, enough)) + (pieces > 1 ? merge_us(warps) : 0.0);
    if (best.warps == 0 || us < 0.99 * best.us)
      best = {warps, static_cast<int>(blocks), static_cast<int>(pieces), false, us};
  }
  return stream.us < best.us ? stream : best;
}

/// How many blocks to launch: one sequence is even whatever its length, and a stream takes all.
constexpr std::int64_t blocks_launched(std::int64_t rows, int batch, const Shape& s) {
  const std::int64_t dealt = std::min<std::int64_t>(rows * s.pieces, s.blocks);
  if (s.streams) return s.blocks;
  return batch == 1 ? dealt : detail::teams_launched(dealt, s.blocks);
}

}  // namespace pagoda::tuned
