// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/decode.hpp"

#include <algorithm>
#include <cstdint>

#if defined(__CUDACC__)
#define PAGODA_HOST_DEVICE __host__ __device__
#else
#define PAGODA_HOST_DEVICE
#endif

/// What the kernels are tuned to, as data and pure functions.
namespace pagoda::tuned {

/// A tile of keys and one of values are a stage. So many stages has every warp: what is on its way hides the memory's
/// latency (24 KB a multiprocessor on an H200), and the next tile is there when one has been used. 24 KB a warp where
/// there is room for eight such warps (sm_90, where tensor maps are), 16 KB elsewhere.
constexpr int stages_of(int tile_bytes, bool tensor_maps) { return (tensor_maps ? 24576 : 16384) / (2 * tile_bytes); }

constexpr bool uses_maps(const Device& d) { return d.sm >= 90; }

/// Warps of all blocks of a multiprocessor, at most: each may take 255 registers.
inline constexpr int warps_per_sm = 8;

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

/// How a batch is spread over a device.
struct Shape {
  int warps;     ///< of a block
  int blocks;    ///< that run at the same time
  int pieces;    ///< of each row (batch entry and kv head)
  bool streams;  ///< rows are not dealt but cut as one stream
  double busy;   ///< part of the machine's time that dealt rows fill
};

/// Blocks of so many warps that fit the device at the same time.
constexpr int blocks_resident(int warps, int tile_bytes, int head_dim, int group, const Device& d) {
  constexpr int reserved = 1024;  // of every block, by the system
  const int bytes        = shared_layout(tile_bytes, head_dim, group, warps, stages_of(tile_bytes, uses_maps(d))).bytes;
  if (bytes > d.shared_per_block) return 0;
  return d.num_sms * std::min(warps_per_sm / warps, d.shared_per_sm / (bytes + reserved));
}

/// Rows as they are dealt: whole where there are enough of them, all of them at once where they fit; else in pieces.
/// Each is best with blocks of another size. tiles: of the longest row there may be.
constexpr Shape spread(std::int64_t rows, std::int64_t tiles, int tile_bytes, int head_dim, int group,
                       const Device& d) {
  Shape best{0, 0, 1, false, 0};
  double best_score = -1;
  for (const int warps : {8, 4, 2, 1}) {
    const std::int64_t blocks = blocks_resident(warps, tile_bytes, head_dim, group, d);
    if (blocks == 0) continue;
    const std::int64_t pieces =
        std::clamp<std::int64_t>(blocks / std::max<std::int64_t>(rows, 1), 1, std::max<std::int64_t>(tiles / 2, 1));
    const std::int64_t rounds = (rows + blocks - 1) / blocks;
    const double busy =
        pieces > 1 ? static_cast<double>(rows * pieces) / static_cast<double>(blocks)
                   : static_cast<double>(rows) / static_cast<double>(blocks * std::max<std::int64_t>(rounds, 1));
    // Cutting rows costs a merge, and every round a start.
    const double starts = rounds > 1 ? 0.03 + std::min(0.0005 * static_cast<double>(rounds), 0.02) : 0.0;
    const double score  = busy - (pieces > 1 ? 0.02 : 0.0) - starts;
    if (score > best_score + (pieces > 1 ? 0.05 : 0.01)) {
      best_score = score;
      best       = {warps, static_cast<int>(blocks), static_cast<int>(pieces), false, busy};
    }
  }
  best.streams = rows > best.blocks && best.busy < 0.85;
  return best;
}

/// How many blocks to launch. Idle ones do harm: the system puts two of them on one multiprocessor, which then reads
/// nothing, rather than one on each of two (4 us of 240 where 8 of 264 were idle). So none are, unless that would leave
/// much of the machine out should the batch turn out uneven.
constexpr std::int64_t blocks_launched(std::int64_t rows, int batch, const Shape& s) {
  const std::int64_t dealt = std::min<std::int64_t>(rows * s.pieces, s.blocks);
  return !s.streams && (batch == 1 || 4 * dealt >= 3 * s.blocks) ? dealt : s.blocks;
}

}  // namespace pagoda::tuned
