// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/ptx.cuh"
#include "backends/cuda/tuned/common/args.hpp"
#include "backends/cuda/tuned/common/lanes.cuh"
#include "backends/cuda/tuned/common/work_division.hpp"
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

/// A batch head, and where it lies in the work of a batch: the tiles of all batch heads, one after another, and behind
/// those of each its price. This is what starting and ending a batch head costs, in tiles. Without it, blocks with many
/// short sequences would end last.
template <int TileTokens, int Price>
struct BatchHeadPlace {
  int batch = 0, head = 0;
  int start = 0;  ///< work before it

  PAGODA_DEVICE static int work_of(int tokens) { return tokens > 0 ? num_tiles<TileTokens>(tokens) + Price : 0; }
  /// The work of the batch is fewer than 2^31 tiles.
  template <class Args>
  PAGODA_DEVICE static int all_work(const Args& args, const BatchTotals& totals) {
    return (totals.tiles + totals.sequences * Price) * args.num_kv_heads.value;
  }
  /// The batch head that has a unit of the work. All lanes call it.
  template <class Args>
  PAGODA_DEVICE static BatchHeadPlace find(const Args& args, int lane, int unit) {
    const int heads = args.num_kv_heads.value;
    for (int first = 0, before = 0;; first += 32) {  // before: work of earlier sequences
      const int mine        = first + lane < args.batch ? work_of(entry_of(args, first + lane).tokens) * heads : 0;
      const int sum         = inclusive_sum(mine, lane);
      const unsigned beyond = __ballot_sync(~0u, before + sum > unit);
      if (beyond != 0) {
        const int which = __ffs(beyond) - 1, count = __shfl_sync(~0u, mine, which), work = count / heads;
        before += __shfl_sync(~0u, sum, which) - count;
        const int head = (unit - before) / work;
        return {first + which, head, before + head * work};
      }
      before += __shfl_sync(~0u, sum, 31);
    }
  }
  /// Goes to the next batch head with tokens, which there must be. tokens: of this one.
  template <class Args>
  PAGODA_DEVICE void next(const Args& args, int tokens) {
    start += work_of(tokens);
    if (++head < args.num_kv_heads.value) return;
    head = 0;
    do ++batch;
    while (entry_of(args, batch).tokens == 0);
  }
};

/// Walks the segments of a block, one after another. There are two ways to divide a batch:
///  - equal splits, for even batches: each batch head is divided into args.num_splits splits, and split s has every
///    num_splits-th tile from s on. The place of a tile follows from its number alone, before any length is known.
///    Batch heads beyond one for each block follow in further rounds.
///  - stream-K (Osama et al., 2023), for any lengths: the work of all batch heads, one after another, is divided into
///    as many runs as there are blocks.
/// Warps: warps over which a block's tiles are distributed. Price: see BatchHeadPlace. BlocksPerHead: blocks that walk
/// as one because they share the query rows of each kv head. They differ in the y of the grid; without such blocks the
/// grid has only an x.
template <int Warps, int TileTokens, int Price, int BlocksPerHead = 1>
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
  template <class Args>
  PAGODA_DEVICE static SegmentWalk stream_k(const Args& args, int warp, int lane, const BatchTotals& totals) {
    SegmentWalk w(warp);
    w.split_    = -1;
    w.division_ = WorkDivision::of(Place::all_work(args, totals), num_blocks(), 1);
    w.at_ = w.division_.begin(block()), w.end_ = w.division_.begin(block() + 1);
    if (w.at_ < w.end_) w.place_ = Place::find(args, lane, w.at_);
    return w;
  }

  /// Finds the next segment. Returns false if there is none.
  template <class Args>
  PAGODA_DEVICE bool next(const Args& args, Segment& s) {
    if (split_ < 0) [[unlikely]]
      return next_stream_k(args, s);
    return next_fixed_split(args, s);
  }

 private:
  using Place = BatchHeadPlace<TileTokens, Price>;

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
    while (at_ < end_) {
      s.batch = place_.batch, s.head = place_.head;
      set_entry(s, entry_of(args, s.batch));
      const int nt = num_tiles<TileTokens>(s.len), start = place_.start, begin = at_ - start;
      s.first_tile     = begin + warp_;
      s.tile_step      = Warps;
      s.tile_limit     = min(nt, end_ - start);
      s.has_first_tile = begin == 0;
      s.first_block = s.last_block = block();
      if (begin > 0 || s.tile_limit < nt)
        s.first_block = division_.owner_of(start), s.last_block = division_.owner_of(start + nt - 1);
      at_ = min(start + Place::work_of(s.len), end_);
      if (at_ < end_) place_.next(args, s.len);
      if (begin < s.tile_limit) return true;  // otherwise the block has a part of the price only
    }
    return false;
  }
  PAGODA_DEVICE static void set_entry(Segment& s, const EntryView& entry) {
    s.sequence = entry.sequence, s.len = entry.tokens;
  }

  static constexpr int beyond_all = 1 << 28;  ///< batch heads

  int warp_;
  int start_ = 0;   ///< equal splits only: index of the batch head
  int split_ = -1;  ///< equal splits only; negative: stream-K
  // Stream-K only.
  WorkDivision division_{};
  Place place_;
  int at_ = 0, end_ = 0;  ///< the block's work that is left
};

}  // namespace pagoda::tuned
