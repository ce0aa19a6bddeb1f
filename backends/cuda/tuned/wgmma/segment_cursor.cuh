// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/common/partials.cuh"
#include "backends/cuda/tuned/common/segments.cuh"
#include "backends/cuda/tuned/wgmma/rows.cuh"

namespace pagoda::tuned::wgmma {

using Segment = tuned::Segment<tile_tokens>;

/// Goes through the segments of a block, for one warp.
template <int BlocksPerHead>
class SegmentCursor {
 public:
  using Walk = SegmentWalk<1, tile_tokens, stream_price_tiles, BlocksPerHead>;
  Segment segment;
  bool valid           = false;  ///< `segment` is a segment of the block
  int last_split_block = 0;      ///< last block that has a split of the batch head

  /// Finds the first segment, on the assumption that the batch is even. Starts to load its length and all other
  /// lengths.
  PAGODA_DEVICE SegmentCursor(const auto& args, int lane)
      : lengths_(args, lane), walk_(Walk::equal_splits(args, 0)), stream_k_(args.stream_k) {
    if (!stream_k_) valid = walk_.next(args, segment);
  }
  /// Looks at the lengths. Returns true if the batch is divided by stream-K, so that the first segment is another one.
  PAGODA_DEVICE bool resolve_lengths(const auto& args, int lane) {
    bool changed = false;
    if (stream_k_ || !(args.single_sequence || lengths_.template count<tile_tokens>(args, lane).even)) [[unlikely]] {
      stream_k_ = changed = true;
      walk_               = Walk::stream_k(args, 0, lane, lengths_.template count<tile_tokens>(args, lane));
      valid               = walk_.next(args, segment);
    }
    check_split();
    return changed;
  }
  PAGODA_DEVICE void next(const auto& args) {
    valid = walk_.next(args, segment);
    check_split();
  }
  PAGODA_DEVICE int tiles() const {
    return segment.first_tile < segment.end_tile()
               ? (segment.end_tile() - segment.first_tile - 1) / segment.tile_step + 1
               : 0;
  }
  /// No other block has a split of the batch head.
  PAGODA_DEVICE bool whole() const { return segment.first_block >= last_split_block; }
  /// The blocks of each cluster join their splits in pairs, because every block has a split.
  PAGODA_DEVICE bool paired(const auto& args) const {
    return args.pairs && !stream_k_ && last_split_block - segment.first_block + 1 == args.num_splits.value;
  }
  PAGODA_DEVICE PendingJoin pending_join() const {
    return {segment.batch, segment.head, segment.first_block, last_split_block};
  }

 private:
  /// The segment is valid only if the batch head has a split for this block.
  PAGODA_DEVICE void check_split() {
    if (!valid) return;
    last_split_block = stream_k_ ? segment.last_block : segment.last_fixed_split(segment.end_tile());
    valid            = Walk::block() <= last_split_block;
  }
  SequenceLengths<> lengths_;
  Walk walk_;
  bool stream_k_;
};

}  // namespace pagoda::tuned::wgmma
