// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/decode.hpp"
#include "src/plan/team_count.hpp"

#include <algorithm>
#include <cstdint>

#if defined(__CUDACC__)
#define PAGODA_HOST_DEVICE __host__ __device__
#else
#define PAGODA_HOST_DEVICE
#endif

/// What the cost models of warp/tuning.hpp and wgmma/tuning.hpp share. They choose launch shapes by expected times; no
/// choice changes a result beyond its rounding. A *batch head* is a pair of batch entry and kv head.
namespace pagoda::tuned {

/// How a batch is distributed over a device.
struct LaunchShape {
  int blocks;      ///< blocks that run at the same time; wgmma: teams of blocks that share a kv head's query rows
  int num_splits;  ///< splits of each batch head
  bool stream_k;   ///< the tiles of all batch heads are divided evenly, instead of each batch head into splits
  int warps = 0;   ///< warps of a block; wgmma: fixed by the kernel
  double us = 0;   ///< expected time besides the start, if all sequences have the given number of tiles
  friend constexpr bool same_launch(const LaunchShape& a, const LaunchShape& b) {
    return a.blocks == b.blocks && a.num_splits == b.num_splits && a.stream_k == b.stream_k && a.warps == b.warps;
  }
};

/// Splits of each batch head, so that all of them run at the same time: one where batch heads outnumber blocks.
constexpr int splits_that_fit(std::int64_t batch_heads, std::int64_t blocks, std::int64_t max_splits) {
  const std::int64_t fit = blocks / std::max<std::int64_t>(batch_heads, 1);
  return static_cast<int>(std::clamp<std::int64_t>(fit, 1, std::max<std::int64_t>(max_splits, 1)));
}

/// Time to read keys and values at the memory's speed. tile_bytes: of keys and values together.
constexpr double read_us(std::int64_t batch_heads, std::int64_t tiles, int tile_bytes, const Device& d) {
  return static_cast<double>(batch_heads) * static_cast<double>(tiles) * tile_bytes / d.speed.bytes_per_us;
}

/// Blocks to launch. Stream-K uses all of them. One sequence is even whatever its length, so there are no idle blocks.
constexpr std::int64_t blocks_to_launch(std::int64_t batch_heads, int batch, const LaunchShape& s) {
  if (s.stream_k) return s.blocks;
  const std::int64_t busy = std::min<std::int64_t>(batch_heads * s.num_splits, s.blocks);
  return batch == 1 ? busy : detail::teams_launched(busy, s.blocks);
}

}  // namespace pagoda::tuned
