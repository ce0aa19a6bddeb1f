// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/common/segments.cuh"
#include "backends/cuda/tuned/warp/fixed_args.hpp"
#include "backends/cuda/tuned/warp/tuning.hpp"

/// Fixed splits: how they are distributed over the blocks. Nothing here changes a result.
namespace pagoda::tuned::warp {

/// The splits of one batch head that a block carries out, one after another, as one warp sees them.
struct FixedSegment : tuned::Segment<tile_tokens> {
  int shift;                   ///< a split has 2^shift tiles
  int first_split, end_split;  ///< splits of the block
  int num_splits;              ///< splits of the batch head
  int first_slot;              ///< slot of its first split; those of the others follow
};

/// Walks the segments of a block. There are two ways to distribute the splits:
///  - in rounds, where no block then has more tiles than an even share and a split, and most blocks have some: each
///    block has a batch head, or if there are fewer of these, one of as many pieces of each as there are blocks for.
///    Batch heads beyond one for each block follow in further rounds. Neighboring blocks read neighboring kv heads of
///    the same tokens at the same time, and whole batch heads need no partial results.
///  - otherwise evenly: the work of all batch heads, one after another, is divided among the blocks as in stream-K. The
///    work of a batch head is its tiles, and behind them its price (fixed_price_tiles). A split belongs to the block
///    that has its first tile.
/// Either way the splits of a segment lie side by side, and copies run on across their ends.
template <int Warps>
class FixedSplitWalk {
 public:
  using Segment = FixedSegment;

  PAGODA_DEVICE FixedSplitWalk(const FixedSplitArgs& args, int warp, int lane, const BatchTotals& totals)
      : warp_(warp), shortest_(args.split_shift) {
    // Sequences longer than max_seq_len may have more splits than there are slots. All splits are then longer.
    while (splits_of(totals.longest, shortest_) > args.slots_per_head) ++shortest_;
    if (in_rounds(args, totals)) return;
    const int heads = args.num_kv_heads.value, blocks = static_cast<int>(gridDim.x);
    const int block        = static_cast<int>(blockIdx.x);
    const std::int64_t all = (totals.tiles + static_cast<std::int64_t>(totals.sequences) * fixed_price_tiles) * heads;
    const int each = static_cast<int>(all / blocks), longer = static_cast<int>(all - std::int64_t(each) * blocks);
    tile_ = each * block + min(block, longer);
    end_  = tile_ + each + (block < longer);
    if (tile_ == end_) return;
    int before = 0;  // work of earlier sequences
    for (int first = 0;; first += 32) {
      const int mine = first + lane < args.batch ? work_of(entry_of(args, first + lane).tokens) * heads : 0;
      int sum        = mine;
#pragma unroll
      for (int d = 1; d < 32; d *= 2) {
        const int other = __shfl_up_sync(~0u, sum, d);
        if (lane >= d) sum += other;
      }
      const unsigned beyond = __ballot_sync(~0u, before + sum > tile_);
      if (beyond != 0) {
        const int which = __ffs(beyond) - 1, count = __shfl_sync(~0u, mine, which);
        before += __shfl_sync(~0u, sum, which) - count;
        batch_         = first + which;
        const int work = count / heads;
        head_          = (tile_ - before) / work;
        start_         = before + head_ * work;
        return;
      }
      before += __shfl_sync(~0u, sum, 31);
    }
  }

  /// Finds the next segment. Returns false if there is none.
  PAGODA_DEVICE bool next(const FixedSplitArgs& args, FixedSegment& s) {
    while (tile_ < end_) {
      if (pieces_ > 0) {  // in rounds: tile_ counts pieces of batch heads
        const int place = args.num_kv_heads.divide(tile_), batch = pieces_ == 1 ? place : place / pieces_;
        const int piece = place - batch * pieces_;
        begin(args, s, batch, tile_ - place * args.num_kv_heads.value);
        s.first_split = piece * s.num_splits / pieces_;
        s.end_split   = (piece + 1) * s.num_splits / pieces_;
        tile_ += static_cast<int>(gridDim.x);
      } else {
        begin(args, s, batch_, head_);
        const int nt  = num_tiles<tile_tokens>(s.len);
        s.first_split = splits_of(tile_ - start_, s.shift);
        s.end_split   = splits_of(min(nt, end_ - start_), s.shift);
        start_ += work_of(s.len);
        tile_ = min(start_, end_);
        if (tile_ < end_ && ++head_ == args.num_kv_heads.value) {
          head_ = 0;
          do ++batch_;
          while (entry_of(args, batch_).tokens == 0);
        }
      }
      s.first_tile     = (s.first_split << s.shift) + warp_;
      s.tile_limit     = s.end_split << s.shift;
      s.has_first_tile = s.first_split == 0;
      if (s.first_split < s.end_split) return true;
    }
    return false;
  }

 private:
  PAGODA_DEVICE static int work_of(int tokens) {
    return tokens > 0 ? num_tiles<tile_tokens>(tokens) + fixed_price_tiles : 0;
  }
  /// Splits of 2^shift tiles that begin before a tile of a batch head.
  PAGODA_DEVICE static int splits_of(int tile, int shift) { return (tile + (1 << shift) - 1) >> shift; }

  /// Distributes the splits in rounds, if blocks then have little more than an even share.
  PAGODA_DEVICE bool in_rounds(const FixedSplitArgs& args, const BatchTotals& totals) {
    const int heads = args.num_kv_heads.value, batch_heads = args.batch * heads, blocks = static_cast<int>(gridDim.x);
    const int shift      = fixed_split_shift(shortest_, totals.longest, heads);
    const int num_splits = splits_of(totals.longest, shift);
    const int pieces     = max(min(blocks / max(batch_heads, 1), num_splits), 1);
    const int rounds     = (batch_heads + blocks - 1) / blocks;
    const std::int64_t most =
        rounds > 1 ? std::int64_t(rounds) * totals.longest : std::int64_t((num_splits + pieces - 1) / pieces) << shift;
    if (4 * batch_heads * pieces < 3 * blocks) return false;
    if (most * blocks > std::int64_t(totals.tiles) * heads + (std::int64_t(blocks) << shift)) return false;
    pieces_ = pieces, tile_ = static_cast<int>(blockIdx.x), end_ = batch_heads * pieces;
    return true;
  }
  /// Begins a segment of a batch head.
  PAGODA_DEVICE void begin(const FixedSplitArgs& args, FixedSegment& s, int batch, int head) const {
    const EntryView entry = entry_of(args, batch);
    const int nt          = num_tiles<tile_tokens>(entry.tokens);
    s.batch = batch, s.head = head, s.sequence = entry.sequence, s.len = entry.tokens;
    s.shift       = fixed_split_shift(shortest_, nt, args.num_kv_heads.value);
    s.num_splits  = splits_of(nt, s.shift);
    s.first_slot  = (batch * args.num_kv_heads.value + head) * args.slots_per_head;
    s.tile_step   = Warps;
    s.first_block = s.last_block = 0;  // unused
  }

  int warp_;
  int shortest_;            ///< the shortest splits have 2^shortest_ tiles
  int pieces_ = 0;          ///< of a batch head; 0: the splits are not distributed in rounds
  int tile_ = 0, end_ = 0;  ///< the block's next tile, and the end of its work, counted over all batch heads
  int start_ = 0;           ///< first tile of the batch head
  int batch_ = 0, head_ = 0;
};

}  // namespace pagoda::tuned::warp
