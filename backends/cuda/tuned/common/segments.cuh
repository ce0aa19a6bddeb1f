// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/ptx.cuh"
#include "backends/cuda/tuned/common/args.hpp"
#include "src/kernel/entry.hpp"
#include "src/plan/team_count.hpp"

/// Finds the tiles that a block reads. Every warp computes them for itself from the batch entries, when the kernel
/// runs. Entries are read through entry_of(args, batch), of which each kind of kernel arguments has an overload.
///
/// A *batch head* is a pair of batch entry and kv head. A *segment* is a block's split of one batch head, as one warp
/// sees it.
namespace pagoda::tuned {

template <int TileTokens>
PAGODA_DEVICE int num_tiles(int len) {
  return static_cast<int>(static_cast<unsigned>(len + TileTokens - 1) / TileTokens);
}

/// The length may still be loading when a segment is found, so values that depend on it are computed when they are
/// needed. Query tokens are read again at the end of a segment, because keeping them would take registers.
template <int TileTokens>
struct Segment {
  int batch, head, sequence, len;
  int first_tile, tile_step;    ///< tiles of the warp
  int tile_limit;               ///< tiles from here on belong to other blocks
  bool has_first_tile;          ///< whether it has the first tile of the batch head
  int first_block, last_block;  ///< blocks that have a split; with equal splits: if there is a tile for each

  PAGODA_DEVICE int end_tile() const { return min(num_tiles<TileTokens>(len), tile_limit); }
  /// Equal splits: last block that has one. There are no more splits than tiles, and one if there is no tile.
  PAGODA_DEVICE int last_fixed_split(int end) const { return min(last_block, first_block + max(end, 1) - 1); }
};

PAGODA_DEVICE int sequence_of(const Args& a, int batch) {
  if (a.has_ids) [[unlikely]]
    return __ldg(a.sequence_ids + batch);
  return batch;
}
using detail::EntryView;
/// A batch entry with one query token. Loads of fields that a caller does not read are left out by the compiler.
PAGODA_DEVICE EntryView entry_of(const Args& a, int batch) {
  const int sequence = sequence_of(a, batch);
  return {sequence, 0, __ldg(a.seq_lens + sequence), batch, 1};
}

/// Tiles of all sequences and of the longest one, sequences with tokens, and whether none is much longer than the
/// others.
struct BatchTotals {
  int tiles, longest, sequences;
  bool even;
};

/// What SequenceLengths loads of a batch entry, and the tokens of the entry that follow from it. Overloads may load
/// more. They keep arithmetic out of the first function, so that loads do not wait for each other.
template <class Args>
PAGODA_DEVICE int load_length(const Args& a, int batch) {
  return entry_of(a, batch).tokens;
}
template <class Args>
PAGODA_DEVICE int tokens_of(const Args&, int length) {
  return length;
}

/// Reads all lengths of a batch, with lanes over batch entries. The constructor starts the first loads: issued after
/// the first copies, they would wait for all of these. Length: what load_length() returns.
template <class Length = int>
class SequenceLengths {
 public:
  template <class Args>
  PAGODA_DEVICE SequenceLengths(const Args& a, int lane) {
    if (a.single_sequence) return;
    loaded_[0] = load_length(a, min(lane, a.batch - 1));
    if (a.batch > 32) [[unlikely]] {
#pragma unroll
      for (int i = 1; i < loads; ++i) loaded_[i] = load_length(a, min(lane + 32 * i, a.batch - 1));
    }
  }
  template <int TileTokens, class Args>
  PAGODA_DEVICE BatchTotals count(const Args& a, int lane) const {
    int tiles = 0, longest = 0, sequences = 0;
    const auto add = [&](const Length& length) {
      const int n = num_tiles<TileTokens>(tokens_of(a, length));
      tiles += n, longest = max(longest, n), sequences += n > 0;
    };
    if (lane < a.batch) add(loaded_[0]);
    if (a.batch > 32) [[unlikely]] {
#pragma unroll
      for (int i = 1; i < loads; ++i)
        if (lane + 32 * i < a.batch) add(loaded_[i]);
#pragma unroll 4
      for (int b = lane + 32 * loads; b < a.batch; b += 32) add(load_length(a, b));
    }
    tiles = __reduce_add_sync(~0u, tiles), longest = __reduce_max_sync(~0u, longest);
    sequences = __reduce_add_sync(~0u, sequences);
    return {tiles, longest, sequences, detail::even_lengths(longest, sequences, tiles)};
  }

 private:
  static constexpr int loads = 8;
  Length loaded_[loads]      = {};
};

/// Walks the segments of a block, one after another. There are two ways to divide a batch:
///  - equal splits, for even batches: each batch head is divided into args.num_splits splits, and split s has every
///    num_splits-th tile from s on. The place of a tile follows from its number alone, before any length is known.
///    Batch heads beyond one for each block follow in further rounds.
///  - stream-K (Osama et al., 2023), for any lengths: the tiles of all batch heads, one after another, are divided into
///    as many runs as there are blocks.
/// Warps: warps over which a block's tiles are distributed. BlocksPerHead: blocks that walk as one because they share
/// the query rows of each kv head. They differ in the y of the grid; without such blocks the grid has only an x.
template <int Warps, int TileTokens, int BlocksPerHead = 1>
class SegmentWalk {
 public:
  using Segment = tuned::Segment<TileTokens>;

  PAGODA_DEVICE static int block() {
    return static_cast<int>(BlocksPerHead == 1 ? blockIdx.x : blockIdx.x + gridDim.x * blockIdx.z);
  }
  PAGODA_DEVICE static int num_blocks() {
    return static_cast<int>(BlocksPerHead == 1 ? gridDim.x : gridDim.x * gridDim.z);
  }

  template <class Args>
  PAGODA_DEVICE static SegmentWalk equal_splits(const Args& args, int warp) {
    SegmentWalk w(warp);
    w.start_ = args.num_splits.divide(block());
    w.split_ = block() - w.start_ * args.num_splits.value;
    return w;
  }
  /// tiles: tiles of all sequences, for one kv head.
  template <class Args>
  PAGODA_DEVICE static SegmentWalk stream_k(const Args& args, int warp, int lane, int tiles) {
    SegmentWalk w(warp);
    const int heads = args.num_kv_heads.value, all = tiles * heads;
    w.split_             = -1;
    w.tiles_per_block_   = all / num_blocks();
    w.num_longer_blocks_ = all - w.tiles_per_block_ * num_blocks();
    w.tile_              = w.tiles_per_block_ * block() + min(block(), w.num_longer_blocks_);
    w.end_               = w.tile_ + w.tiles_per_block_ + (block() < w.num_longer_blocks_);
    if (w.tile_ == w.end_) return w;
    int before = 0;  // tiles of earlier sequences
    for (int first = 0;; first += 32) {
      const int mine =
          first + lane < args.batch ? num_tiles<TileTokens>(entry_of(args, first + lane).tokens) * heads : 0;
      int sum = mine;
#pragma unroll
      for (int d = 1; d < 32; d *= 2) {
        const int other = __shfl_up_sync(~0u, sum, d);
        if (lane >= d) sum += other;
      }
      const unsigned beyond = __ballot_sync(~0u, before + sum > w.tile_);
      if (beyond != 0) {
        const int which = __ffs(beyond) - 1, count = __shfl_sync(~0u, mine, which);
        before += __shfl_sync(~0u, sum, which) - count;
        w.batch_     = first + which;
        const int nt = count / heads;
        w.head_      = (w.tile_ - before) / nt;
        w.start_     = before + w.head_ * nt;
        return w;
      }
      before += __shfl_sync(~0u, sum, 31);
    }
  }

  /// Finds the next segment. Returns false if there is none.
  template <class Args>
  PAGODA_DEVICE bool next(const Args& args, Segment& s) {
    if (split_ < 0) [[unlikely]]
      return next_stream_k(args, s);
    return next_fixed_split(args, s);
  }

 private:
  PAGODA_DEVICE explicit SegmentWalk(int warp) : warp_(warp) {}

  template <class Args>
  PAGODA_DEVICE bool next_fixed_split(const Args& args, Segment& s) {
    const int num_splits = args.num_splits.value;
    s.batch              = args.num_kv_heads.divide(start_);
    if (s.batch >= args.batch) return false;
    s.head = start_ - s.batch * args.num_kv_heads.value;
    set_entry(s, entry_of(args, s.batch));
    s.tile_limit     = 1 << 28;
    s.first_tile     = warp_ * num_splits + split_;
    s.tile_step      = Warps * num_splits;
    s.has_first_tile = split_ == 0;
    s.first_block    = start_ * num_splits;
    s.last_block     = s.first_block + num_splits - 1;
    start_ += num_splits == 1 ? num_blocks() : beyond_all;
    return true;
  }

  template <class Args>
  PAGODA_DEVICE bool next_stream_k(const Args& args, Segment& s) {
    if (tile_ >= end_) return false;
    s.batch = batch_, s.head = head_;
    set_entry(s, entry_of(args, batch_));
    const int nt = num_tiles<TileTokens>(s.len), begin = tile_ - start_;
    s.first_tile     = begin + warp_;
    s.tile_step      = Warps;
    s.tile_limit     = min(nt, end_ - start_);
    s.has_first_tile = begin == 0;
    s.first_block = s.last_block = block();
    if (begin > 0 || s.tile_limit < nt) s.first_block = block_of(start_), s.last_block = block_of(start_ + nt - 1);
    tile_ = start_ + s.tile_limit;
    if (s.tile_limit == nt && tile_ < end_) {
      start_ += nt;
      if (++head_ == args.num_kv_heads.value) {
        head_ = 0;
        do ++batch_;
        while (entry_of(args, batch_).tokens == 0);
      }
    }
    return true;
  }
  PAGODA_DEVICE static void set_entry(Segment& s, const EntryView& entry) {
    s.sequence = entry.sequence, s.len = entry.tokens;
  }
  PAGODA_DEVICE int block_of(int tile) const {
    const int bounds = (tiles_per_block_ + 1) * num_longer_blocks_;
    return tile < bounds ? tile / (tiles_per_block_ + 1) : num_longer_blocks_ + (tile - bounds) / tiles_per_block_;
  }

  static constexpr int beyond_all = 1 << 28;  ///< batch heads

  int warp_;
  int start_ = 0;   ///< position of the batch head; equal splits: its index; stream-K: its first tile
  int split_ = -1;  ///< equal splits only; negative: stream-K
  // Stream-K. Tiles are counted over all batch heads.
  int tile_ = 0, end_ = 0;     ///< the block's next tile, and the one behind its last
  int tiles_per_block_   = 0;  ///< one more in the first num_longer_blocks_ blocks
  int num_longer_blocks_ = 0;
  int batch_ = 0, head_ = 0;
};

}  // namespace pagoda::tuned
