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

/// To read so many tiles, two each of keys and values, at the memory's speed.
constexpr double read_us(std::int64_t rows, std::int64_t tiles, int tile_bytes, const Device& d) {
  return static_cast<double>(rows) * static_cast<double>(tiles) * 2 * tile_bytes / d.speed.bytes_per_us;
}

/// What elements of other than 16 bits cost beyond their bytes: they are converted, or multiplied one by one. Measured
/// on an H100, like the other numbers below (bench/NOTES.md).
constexpr bool has_16_bits(int tile_bytes, int head_dim) { return tile_bytes == 16 * head_dim * 2; }

/// Merge of splits: blocks of 8 warps, then what more and smaller blocks add. Partial sums grow with the group.
constexpr double merge_us(int warps, int group, const Speed& s) {
  const double us = warps == 8 ? s.merge8_us : warps == 4 ? s.merge4_us : warps == 2 ? s.merge2_us : s.merge1_us;
  return s.merge8_us + (us - s.merge8_us) * group / 4;
}

/// Rows dealt to blocks of so many warps: in splits where more blocks fit than there are rows, in several rounds where
/// fewer do. No blocks where not even one fits a multiprocessor.
constexpr Shape dealt(int warps, std::int64_t rows, std::int64_t tiles, int tile_bytes, int head_dim, int group,
                      const Device& d) {
  const std::int64_t blocks = blocks_resident(warps, tile_bytes, head_dim, group, d);
  if (blocks == 0) return {warps, 0, 1, false, 0};
  const std::int64_t most   = std::max<std::int64_t>(tiles / 2, 1);
  const std::int64_t pieces = std::clamp<std::int64_t>(blocks / std::max<std::int64_t>(rows, 1), 1, most);
  const std::int64_t parts = std::max<std::int64_t>(rows * pieces, 1), rounds = (parts - 1) / blocks + 1;
  // A round that fills the device, and the share of its time that the last one takes: idle blocks fill multiprocessors
  // too, so the others read no faster than so many multiprocessors can.
  const double round  = read_us(rows, tiles, tile_bytes, d) * static_cast<double>(blocks) / static_cast<double>(parts);
  const double sm     = d.speed.sm_bytes_per_us * (has_16_bits(tile_bytes, head_dim) ? 1 : 0.8);
  const double enough = d.speed.bytes_per_us / (d.num_sms * sm);
  const double last   = static_cast<double>(parts - (rounds - 1) * blocks) / static_cast<double>(blocks);
  const double before = rounds > 1 ? 1.01 * static_cast<double>(rounds - 1) + 0.01 : 0.0;
  const double us     = round * (before + std::max(last, enough)) +
                    d.speed.row8_us * warps / 8 * static_cast<double>(rounds - 1) +
                    (pieces > 1 ? merge_us(warps, group, d.speed) : 0.0);
  return {warps, static_cast<int>(blocks), static_cast<int>(pieces), false, us};
}

/// All rows as one stream, cut evenly among the largest blocks that fit.
constexpr Shape streamed(std::int64_t rows, std::int64_t tiles, int tile_bytes, int head_dim, int group,
                         const Device& d) {
  int warps = 8;
  while (warps > 1 && blocks_resident(warps, tile_bytes, head_dim, group, d) == 0) warps /= 2;
  const double factor = d.speed.stream_factor + (has_16_bits(tile_bytes, head_dim) ? 0 : 0.06);
  return {warps, blocks_resident(warps, tile_bytes, head_dim, group, d), 1, true,
          factor * read_us(rows, tiles, tile_bytes, d) + d.speed.stream_us * std::max(group / 4.0, 1.0)};
}

/// Chooses how rows are spread over the device: whole rows where there are enough of them, all at once where they fit;
/// otherwise splits of rows; or one stream where neither fills the device. Each is best with blocks of another size.
/// tiles: of the longest row there may be.
constexpr Shape spread(std::int64_t rows, std::int64_t tiles, int tile_bytes, int head_dim, int group,
                       const Device& d) {
  Shape best{};
  for (const int warps : {8, 4, 2, 1}) {
    const Shape s = dealt(warps, rows, tiles, tile_bytes, head_dim, group, d);
    if (s.blocks > 0 && (best.blocks == 0 || s.us < 0.99 * best.us)) best = s;
  }
  const Shape stream = streamed(rows, tiles, tile_bytes, head_dim, group, d);
  return stream.us < best.us ? stream : best;
}

/// Whether a batch of a paged cache is expected to be uneven: one sequence may fill half of all pages. Rows that are
/// dealt read a ring of tiles before they know the lengths, in vain where these are uneven: 8 us of 240 on an H100.
constexpr bool expects_uneven(std::int64_t batch, std::int64_t max_seq_len, std::int64_t pool_tokens) {
  return batch >= 4 && batch * max_seq_len > 2 * pool_tokens && 2 * max_seq_len >= pool_tokens;
}

/// How many blocks to launch: one sequence is even whatever its length, and a stream takes all.
constexpr std::int64_t blocks_launched(std::int64_t rows, int batch, const Shape& s) {
  const std::int64_t dealt = std::min<std::int64_t>(rows * s.pieces, s.blocks);
  if (s.streams) return s.blocks;
  return batch == 1 ? dealt : detail::teams_launched(dealt, s.blocks);
}

}  // namespace pagoda::tuned
