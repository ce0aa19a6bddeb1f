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
///  - otherwise evenly: the work of all batch heads, one after another, is divided among the blocks as in stream-K
///    (BatchHeadPlace). A split belongs to the block that has its first tile.
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
    const auto division = WorkDivision::of(Place::all_work(args, totals), static_cast<int>(gridDim.x), 1);
    at_ = division.begin(static_cast<int>(blockIdx.x)), end_ = division.begin(static_cast<int>(blockIdx.x) + 1);
    if (at_ < end_) place_ = Place::find(args, lane, at_);
  }

  /// Finds the next segment. Returns false if there is none.
  PAGODA_DEVICE bool next(const FixedSplitArgs& args, FixedSegment& s) {
    while (at_ < end_) {
      if (pieces_ > 0) {  // in rounds: at_ counts pieces of batch heads
        const int place = args.num_kv_heads.divide(at_), batch = pieces_ == 1 ? place : place / pieces_;
        const int piece = place - batch * pieces_;
        begin(args, s, batch, at_ - place * args.num_kv_heads.value);
        s.first_split = piece * s.num_splits / pieces_;
        s.end_split   = (piece + 1) * s.num_splits / pieces_;
        at_ += static_cast<int>(gridDim.x);
      } else {
        begin(args, s, place_.batch, place_.head);
        const int nt = num_tiles<tile_tokens>(s.len), start = place_.start;
        s.first_split = splits_of(at_ - start, s.shift);
        s.end_split   = splits_of(min(nt, end_ - start), s.shift);
        at_           = min(start + Place::work_of(s.len), end_);
        if (at_ < end_) place_.next(args, s.len);
      }
      s.first_tile     = (s.first_split << s.shift) + warp_;
      s.tile_limit     = s.end_split << s.shift;
      s.has_first_tile = s.first_split == 0;
      if (s.first_split < s.end_split) return true;
    }
    return false;
  }

 private:
  using Place = BatchHeadPlace<tile_tokens, fixed_price_tiles>;

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
    pieces_ = pieces, at_ = static_cast<int>(blockIdx.x), end_ = batch_heads * pieces;
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
  int shortest_;          ///< the shortest splits have 2^shortest_ tiles
  int pieces_ = 0;        ///< of a batch head; 0: the splits are not distributed in rounds
  int at_ = 0, end_ = 0;  ///< the block's work that is left
  Place place_;
};

}  // namespace pagoda::tuned::warp
