// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/common/cost_model.hpp"

#include <algorithm>
#include <cstdint>

/// What the warp kernels are tuned to, as data and pure functions.
namespace pagoda::tuned::warp {

inline constexpr int tile_tokens = 16;

constexpr bool uses_maps(const Device& d) { return d.sm >= 90; }
/// The device as a card without tensor maps.
constexpr Device without_maps(Device d) {
  d.sm = std::min(d.sm, 86);
  return d;
}

/// The most warps of all blocks of a multiprocessor: each may take 255 registers.
inline constexpr int warps_per_sm = 8;

/// The most shared memory of a block on any supported card (sm_90).
inline constexpr int max_shared_per_block = 227 * 1024;

/// What a stage holds: tiles of keys and of values, one of each for each kv head, and scales of single tokens.
struct TileBytes {
  int rows;    ///< bytes of the keys, and of the values
  int scales;  ///< bytes of the scales of both
  int heads;   ///< kv heads that a warp reads at once
  PAGODA_HOST_DEVICE constexpr TileBytes(int rows_, int scales_ = 0, int heads_ = 1)
      : rows(rows_), scales(scales_), heads(heads_) {}
  PAGODA_HOST_DEVICE constexpr int stage() const { return 2 * rows + scales; }
};
constexpr TileBytes tile_bytes(Type type, int head_dim, int heads = 1) {
  return {heads * tile_tokens * row_bytes(type, head_dim), is_integer(type) ? heads * 2 * tile_tokens * 4 : 0, heads};
}

/// Bytes of a warp's ring: the tiles of all stages, then their scales. Rings begin on multiples of 1024 bytes.
PAGODA_HOST_DEVICE constexpr int ring_bytes(TileBytes tile, int stages) {
  return (stages * tile.stage() + 1023) / 1024 * 1024;
}

/// Offsets in a block's shared memory: the rings of all warps, then the states that warps exchange, then barriers.
struct SharedLayout {
  int values, states, barriers, bytes;
};
PAGODA_HOST_DEVICE constexpr SharedLayout shared_layout(TileBytes tile, int head_dim, int group_size, int warps,
                                                        int stages) {
  SharedLayout l{};
  l.values   = warps * ring_bytes(tile, stages);
  l.states   = l.values + warps * group_size * (head_dim + 4) * 4;
  l.barriers = l.states + warps * 8 * 8;
  l.bytes    = l.barriers + warps * stages * 8;
  return l;
}

/// The resources that a block takes on a multiprocessor.
struct Block {
  int stages;  ///< stages in the ring of each warp
  int shared;  ///< bytes
  int per_sm;  ///< blocks that run on a multiprocessor at the same time; 0: no block fits
};

constexpr Block block_with(int bytes, int stages, int warps, const Device& d) {
  constexpr int reserved = 1024;  // bytes that the system takes for each block
  const int fit          = std::min(warps_per_sm / warps, d.shared_per_sm / (bytes + reserved));
  return {stages, bytes, bytes > d.shared_per_block ? 0 : fit};
}
constexpr Block block_with(int stages, int warps, TileBytes tile, int head_dim, int group_size, const Device& d) {
  return block_with(shared_layout(tile, head_dim, group_size, warps, stages).bytes, stages, warps, d);
}

/// Stages of a warp's ring. A stage is a tile of keys and one of values. Bytes in flight hide the memory latency (24 KB
/// for each multiprocessor on an H200), and the next tile is ready when the current one has been used. The longer ring
/// has 24 KB and at least three stages (sm_90, which has tensor maps), the shorter one 16 KB and at least two.
constexpr int stages_of(TileBytes tile, bool longer) {
  return std::max((longer ? 24576 : 16384) / tile.stage(), longer && tile.heads == 1 ? 3 : 2);
}

/// Small blocks use the shorter ring if more of them fit with it: running all batch heads at the same time is faster
/// than running them in rounds.
constexpr bool may_have_shorter_ring(int warps) { return warps <= 2; }

constexpr Block block_of(int warps, TileBytes tile, int head_dim, int group_size, const Device& d) {
  const Block shorter = block_with(stages_of(tile, false), warps, tile, head_dim, group_size, d);
  if (!uses_maps(d)) return shorter;
  const Block longer = block_with(stages_of(tile, true), warps, tile, head_dim, group_size, d);
  return may_have_shorter_ring(warps) && shorter.per_sm > longer.per_sm ? shorter : longer;
}

/// Blocks that run on the device at the same time.
constexpr int blocks_resident(int warps, TileBytes tile, int head_dim, int group_size, const Device& d) {
  return d.num_sms * block_of(warps, tile, head_dim, group_size, d).per_sm;
}

/// Elements that are not 16 bits wide cost more than their bytes: they are converted, or multiplied one by one.
/// Measured on an H100, like the other numbers below (bench/NOTES.md).
constexpr bool has_16_bits(TileBytes tile, int head_dim) { return tile.rows == tile_tokens * head_dim * 2; }

/// Time to merge splits: the time with blocks of 8 warps, and the extra time of more and smaller blocks. Partial
/// results grow with the group.
constexpr double merge_us(int warps, int group_size, const Speed& s) {
  const double us = warps == 8 ? s.merge8_us : warps == 4 ? s.merge4_us : warps == 2 ? s.merge2_us : s.merge1_us;
  return s.merge8_us + (us - s.merge8_us) * group_size / 4;
}

/// Fewer blocks than fit read more slowly than the memory could, most of all if multiprocessors are idle: the factor of
/// their time. part: of the blocks that fit. Measured on an H100 with 55 to 100% of the blocks (bench/NOTES.md).
constexpr double missing_blocks_factor(double part, bool one_per_sm) {
  return 1 + (one_per_sm ? 0.5 : 0.2) * std::max(0.0, 0.88 - part);
}

/// Equal splits with blocks of the given size. If there are more blocks than batch heads, each batch head has several
/// splits; if there are fewer, blocks work in several rounds. Returns no blocks if none fits a multiprocessor.
constexpr LaunchShape equal_splits(int warps, std::int64_t batch_heads, std::int64_t tiles, TileBytes tile,
                                   int head_dim, int group_size, const Device& d) {
  const std::int64_t blocks = blocks_resident(warps, tile, head_dim, group_size, d);
  if (blocks == 0) return {0, 1, false, warps, 0};
  const std::int64_t num_splits = splits_that_fit(batch_heads, blocks, tiles / 2);
  const std::int64_t all        = std::max<std::int64_t>(batch_heads * num_splits, 1);
  const std::int64_t rounds     = (all - 1) / blocks + 1;
  // The time of a round that fills the device, and the fraction of it that the last round takes. Idle blocks occupy
  // multiprocessors too, so the busy blocks read only at the rate of the multiprocessors that they run on.
  const double round =
      read_us(batch_heads, tiles, tile.stage(), d) * static_cast<double>(blocks) / static_cast<double>(all);
  const double sm     = d.speed.sm_bytes_per_us * (has_16_bits(tile, head_dim) ? 1 : 0.8);
  const double enough = d.speed.bytes_per_us / (d.num_sms * sm);
  const double last   = static_cast<double>(all - (rounds - 1) * blocks) / static_cast<double>(blocks);
  const double before = rounds > 1 ? 1.01 * static_cast<double>(rounds - 1) + 0.01 : 0.0;
  const double slower = rounds > 1 ? 1 : missing_blocks_factor(last, blocks == d.num_sms);
  const double us     = round * (before + std::max(last, enough)) * slower +
                    d.speed.row8_us * warps / 8 * static_cast<double>(rounds - 1) +
                    (num_splits > 1 ? merge_us(warps, group_size, d.speed) : 0.0);
  return {static_cast<int>(blocks), static_cast<int>(num_splits), false, warps, us};
}

/// What starting and ending a batch head costs in stream-K, in tiles of a block: as much as reading 96 KB.
PAGODA_HOST_DEVICE constexpr int stream_price_tiles(TileBytes tile) { return 98304 / tile.stage(); }

/// Stream-K with the largest blocks that fit.
constexpr LaunchShape stream_k(std::int64_t batch_heads, std::int64_t tiles, TileBytes tile, int head_dim,
                               int group_size, const Device& d) {
  int warps = 8;
  while (warps > 1 && blocks_resident(warps, tile, head_dim, group_size, d) == 0) warps /= 2;
  const double factor = d.speed.stream_factor + (has_16_bits(tile, head_dim) ? 0 : 0.06);
  return {blocks_resident(warps, tile, head_dim, group_size, d), 1, true, warps,
          factor * read_us(batch_heads, tiles, tile.stage(), d) + d.speed.stream_us * std::max(group_size / 4.0, 1.0)};
}

/// Chooses the launch shape: whole batch heads if there are enough of them, all at the same time if they fit; otherwise
/// splits; or stream-K if neither fills the device. Each is fastest with another block size. tiles: tiles of the
/// longest sequence that there may be.
constexpr LaunchShape choose_shape(std::int64_t batch_heads, std::int64_t tiles, TileBytes tile, int head_dim,
                                   int group_size, const Device& d) {
  LaunchShape best{};
  for (const int warps : {8, 4, 2, 1}) {
    const LaunchShape s = equal_splits(warps, batch_heads, tiles, tile, head_dim, group_size, d);
    if (s.blocks > 0 && (best.blocks == 0 || s.us < 0.99 * best.us)) best = s;
  }
  const LaunchShape stream = stream_k(batch_heads, tiles, tile, head_dim, group_size, d);
  return stream.us < best.us ? stream : best;
}

/// Whether the warps of an integer kernel without a list may read two kv heads at once. More query rows would not fit
/// the registers.
constexpr bool may_read_two_heads(const Problem& p) {
  return is_integer(p.type) && !is_list(p) && p.num_kv_heads % 2 == 0 && p.num_q_heads <= 4 * p.num_kv_heads;
}
/// They do so where the rows of a token are adjacent: short rows then come in whole lines of the second-level cache.
/// Small problems start sooner with one (bench/NOTES.md).
constexpr int heads_at_once(const Problem& p) {
  const std::int64_t row = row_bytes(p.type, p.head_dim), tokens = p.batch * p.max_seq_len;
  const bool adjacent = p.k.head == row && p.v.head == row, large = tokens * p.num_kv_heads * 2 * row >= 16'000'000;
  return may_read_two_heads(p) && adjacent && large ? 2 : 1;
}

/// Fixed splits: tokens of the shortest splits, warps of a block and stages of a warp's ring. They follow from the
/// shape alone. A split is at least 512 KB of keys and values, so that a single sequence occupies many multiprocessors,
/// or 1 MB where partial results are large for it (more than four query rows) or multiply-adds take most of the time
/// (32 bits).
constexpr int fixed_split_tokens(TileBytes tile, int head_dim, int group_size) {
  const bool is_large = group_size > 4 || tile.rows == tile_tokens * head_dim * 4;
  return (is_large ? 1048576 : 524288) / (2 * tile.rows) * tile_tokens;
}
/// Long sequences have splits of up to four times the length: with 128 splits of all kv heads a sequence alone occupies
/// a device, and each split more costs time. Returns the tiles of a split of a sequence, as a power of two; shortest:
/// those of the shortest splits.
PAGODA_HOST_DEVICE constexpr int fixed_split_shift(int shortest, int tiles, int kv_heads) {
  const std::int64_t times = std::int64_t(tiles) * kv_heads >> (shortest + 8);
  return shortest + (times >= 2 ? 2 : times >= 1 ? 1 : 0);
}
PAGODA_HOST_DEVICE constexpr int fixed_split_warps(TileBytes tile) { return tile.rows > 4096 ? 4 : 8; }
constexpr int fixed_split_stages(TileBytes tile) { return stages_of(tile, false); }
/// Splits of a run, whose states are added one after another (fixed_splits.cuh), as a power of two.
inline constexpr int fixed_run_shift = 3;
/// What starting and ending a batch head costs, in tiles of a block.
inline constexpr int fixed_price_tiles = 8;

/// Offsets in a block's shared memory: as in SharedLayout, with states of two splits, and the sums of all output quads.
struct FixedLayout {
  int values, states, sums, barriers, bytes;
};
inline constexpr int fixed_sums_bytes = 2 * (16 + 8);  ///< of an output quad
PAGODA_HOST_DEVICE constexpr FixedLayout fixed_layout(TileBytes tile, int head_dim, int group_size, int warps,
                                                      int stages) {
  FixedLayout l{};
  l.values   = warps * stages * tile.stage();
  l.states   = l.values + 2 * warps * group_size * (head_dim + 4) * 4;
  l.sums     = l.states + 2 * warps * 8 * 8;
  l.barriers = l.sums + group_size * (head_dim / 4) * fixed_sums_bytes;
  l.bytes    = l.barriers + (warps * stages + 1) * 8;
  return l;
}
/// The same as block_of for fixed splits.
constexpr Block fixed_split_block(TileBytes tile, int head_dim, int group_size, const Device& d) {
  const int stages = fixed_split_stages(tile), warps = fixed_split_warps(tile);
  return block_with(fixed_layout(tile, head_dim, group_size, warps, stages).bytes, stages, warps, d);
}

/// Slots for partial results of a batch head: at most one split more than whole ones.
constexpr std::int64_t fixed_split_slots(std::int64_t max_seq_len, int split_tokens) {
  return max_seq_len / split_tokens + 1;
}

/// Whether a batch of a paged cache is expected to be uneven: one sequence may fill half of all pages. With fixed
/// splits, blocks copy a ring of tiles before they know the lengths. If the lengths are uneven, these copies are
/// wasted: 8 us of 240 on an H100.
constexpr bool expects_uneven(std::int64_t batch, std::int64_t max_seq_len, std::int64_t pool_tokens) {
  return batch >= 4 && batch * max_seq_len > 2 * pool_tokens && 2 * max_seq_len >= pool_tokens;
}

}  // namespace pagoda::tuned::warp
