// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/common/segments.cuh"
#include "backends/cuda/tuned/warp/fixed_args.hpp"
#include "backends/cuda/tuned/warp/tuning.hpp"

/// Fixed splits: how they are distributed over the blocks. Nothing here changes a result.
namespace pagoda::tuned::warp {

/// The splits of one batch head that a block carries out, one after another, as one warp sees them.
struct FixedSegment : tuned::Segment<tile_tokens> {
  int first_split, end_split;  ///< splits of the block
  int num_splits;              ///< splits of the batch head
  int first_slot;              ///< slot of its first split; those of the others follow
};

/// Walks the segments of a block. The work of all batch heads, one after another, is divided evenly among the blocks,
/// as in stream-K. The work of a batch head is its tiles, and behind them its price (fixed_price_tiles). A split
/// belongs to the block that has its first tile. So the splits of a block lie side by side, and copies run on across
/// their ends.
template <int Warps>
class FixedSplitWalk {
 public:
  using Segment = FixedSegment;

  PAGODA_DEVICE FixedSplitWalk(const FixedSplitArgs& args, int warp, int lane, const BatchTotals& totals)
      : warp_(warp) {
    const int heads = args.num_kv_heads.value, blocks = static_cast<int>(gridDim.x);
    const int block        = static_cast<int>(blockIdx.x);
    const std::int64_t all = (totals.tiles + static_cast<std::int64_t>(totals.sequences) * fixed_price_tiles) * heads;
    // Sequences longer than max_seq_len may have more splits than there are slots. All splits are then longer.
    for (shift_ = args.split_shift; (all >> shift_) + args.batch * heads >= args.max_slots && shift_ < 30;) ++shift_;
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
      const EntryView entry = entry_of(args, batch_);
      const int nt = num_tiles<tile_tokens>(entry.tokens), row = batch_ * args.num_kv_heads.value + head_;
      s.batch = batch_, s.head = head_, s.sequence = entry.sequence, s.len = entry.tokens;
      s.first_split    = splits_of(tile_ - start_);
      s.end_split      = splits_of(min(nt, end_ - start_));
      s.num_splits     = splits_of(nt);
      s.first_slot     = (start_ >> shift_) + row;
      s.first_tile     = (s.first_split << shift_) + warp_;
      s.tile_step      = Warps;
      s.tile_limit     = s.end_split << shift_;
      s.has_first_tile = s.first_split == 0;
      s.first_block = s.last_block = 0;  // unused
      start_ += work_of(entry.tokens);
      tile_ = min(start_, end_);
      if (tile_ < end_ && ++head_ == args.num_kv_heads.value) {
        head_ = 0;
        do ++batch_;
        while (entry_of(args, batch_).tokens == 0);
      }
      if (s.first_split < s.end_split) return true;
    }
    return false;
  }

  /// A split has 2^shift tiles.
  PAGODA_DEVICE int shift() const { return shift_; }

 private:
  PAGODA_DEVICE static int work_of(int tokens) {
    return tokens > 0 ? num_tiles<tile_tokens>(tokens) + fixed_price_tiles : 0;
  }
  /// Splits that begin before a tile of a batch head.
  PAGODA_DEVICE int splits_of(int tile) const { return (tile + (1 << shift_) - 1) >> shift_; }

  int warp_, shift_;
  // Work is counted over all batch heads.
  int tile_ = 0, end_ = 0;  ///< the block's next tile, and the end of its work
  int start_ = 0;           ///< first tile of the batch head
  int batch_ = 0, head_ = 0;
};

}  // namespace pagoda::tuned::warp
