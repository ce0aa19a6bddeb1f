// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/ptx.cuh"
#include "backends/cuda/tuned/common/args.hpp"
#include "src/plan/launched.hpp"

/// Which tiles are a block's: worked out from the lengths when the kernel runs, by every warp for itself.
namespace pagoda::tuned {

template <int Tokens = 16>
PAGODA_DEVICE int tiles_of(int len) {
  return static_cast<int>(static_cast<unsigned>(len + Tokens - 1) / Tokens);
}

/// A block's part of one row (batch entry and kv head), as one warp sees it. The length is on its way when a segment is
/// found: whatever follows from it is worked out when it is needed.
template <int Tokens>
struct SegmentOf {
  int batch, head, sequence, len;
  int first, step;  ///< tiles of the warp
  int limit;        ///< tiles from here on are other blocks'
  bool begins;      ///< it has the row's first tile
  int from, to;     ///< blocks that have a part, first and last; dealt: if the row is long enough for all

  PAGODA_DEVICE int end() const { return min(tiles_of<Tokens>(len), limit); }
};
using Segment = SegmentOf<16>;

PAGODA_DEVICE int sequence_of(const Args& a, int batch) {
  if (a.has_ids) [[unlikely]]
    return __ldg(a.sequence_ids + batch);
  return batch;
}
PAGODA_DEVICE int length_of(const Args& a, int batch) { return __ldg(a.seq_lens + sequence_of(a, batch)); }
/// Tiles of all sequences, and whether none is much longer than the others.
struct Totals {
  int tiles;
  bool even;
};

/// All lengths of a batch, lanes over entries. The first are asked for when it is made: behind the first copies they
/// would wait for all of them.
class Lengths {
 public:
  PAGODA_DEVICE Lengths(const Args& a, int lane) {
    if (a.alone) return;
    first_[0] = length_of(a, min(lane, a.batch - 1));
    if (a.batch > 32) [[unlikely]] {
#pragma unroll
      for (int i = 1; i < early; ++i) first_[i] = length_of(a, min(lane + 32 * i, a.batch - 1));
    }
  }
  template <int Tokens = 16>
  PAGODA_DEVICE Totals count(const Args& a, int lane) const {
    int tiles = 0, longest = 0, sequences = 0;
    const auto add = [&](int len) {
      const int n = tiles_of<Tokens>(len);
      tiles += n, longest = max(longest, n), sequences += n > 0;
    };
    if (lane < a.batch) add(first_[0]);
    if (a.batch > 32) [[unlikely]] {
#pragma unroll
      for (int i = 1; i < early; ++i)
        if (lane + 32 * i < a.batch) add(first_[i]);
#pragma unroll 4
      for (int b = lane + 32 * early; b < a.batch; b += 32) add(length_of(a, b));
    }
    tiles = __reduce_add_sync(~0u, tiles), longest = __reduce_max_sync(~0u, longest);
    sequences = __reduce_add_sync(~0u, sequences);
    return {tiles, detail::even_lengths(longest, sequences, tiles)};
  }

 private:
  static constexpr int early = 8;
  int first_[early]          = {};
};

/// The segments of a block, one after another. Two ways:
///  - dealt: rows of even batches are cut alike, into args.pieces pieces, of which piece p has every so many-th tile.
///    Where a tile lies follows from its number alone, before any length is known. Rows beyond one for each block
///    follow in further rounds.
///  - streamed: the tiles of all rows, one row after another, are cut into as many runs as there are blocks
///    (stream-K: Osama et al., 2023), whatever the lengths.
/// Together: so many blocks, side by side in the grid, walk as one.
template <int Warps, int Tokens = 16, int Together = 1>
class Walk {
 public:
  using Segment = SegmentOf<Tokens>;

  PAGODA_DEVICE static int block() { return static_cast<int>(blockIdx.x / Together); }
  PAGODA_DEVICE static int blocks() { return static_cast<int>(gridDim.x / Together); }

  PAGODA_DEVICE static Walk dealt(const Args& args, int warp) {
    Walk w(warp);
    w.row_   = args.pieces.divide(block());
    w.piece_ = block() - w.row_ * args.pieces.value;
    return w;
  }
  /// tiles: of all sequences, for one kv head.
  PAGODA_DEVICE static Walk streamed(const Args& args, int warp, int lane, int tiles) {
    Walk w(warp);
    const int heads = args.num_kv_heads.value, all = tiles * heads;
    w.piece_ = -1;
    w.each_ = all / blocks(), w.longer_ = all - w.each_ * blocks();
    w.at_  = w.each_ * block() + min(block(), w.longer_);
    w.end_ = w.at_ + w.each_ + (block() < w.longer_);
    if (w.at_ == w.end_) return w;
    int before = 0;  // tiles of earlier sequences
    for (int first = 0;; first += 32) {
      const int mine = first + lane < args.batch ? tiles_of<Tokens>(length_of(args, first + lane)) * heads : 0;
      int sum        = mine;
#pragma unroll
      for (int d = 1; d < 32; d *= 2) {
        const int other = __shfl_up_sync(~0u, sum, d);
        if (lane >= d) sum += other;
      }
      const unsigned beyond = __ballot_sync(~0u, before + sum > w.at_);
      if (beyond != 0) {
        const int which = __ffs(beyond) - 1, count = __shfl_sync(~0u, mine, which);
        before += __shfl_sync(~0u, sum, which) - count;
        w.batch_     = first + which;
        const int nt = count / heads;
        w.head_      = (w.at_ - before) / nt;
        w.row_       = before + w.head_ * nt;
        return w;
      }
      before += __shfl_sync(~0u, sum, 31);
    }
  }

  /// False: there are no more.
  PAGODA_DEVICE bool next(const Args& args, Segment& s) {
    if (piece_ < 0) [[unlikely]]
      return next_streamed(args, s);
    return next_dealt(args, s);
  }

 private:
  PAGODA_DEVICE explicit Walk(int warp) : warp_(warp) {}

  PAGODA_DEVICE bool next_dealt(const Args& args, Segment& s) {
    const int pieces = args.pieces.value;
    s.batch          = args.num_kv_heads.divide(row_);
    if (s.batch >= args.batch) return false;
    s.head     = row_ - s.batch * args.num_kv_heads.value;
    s.sequence = sequence_of(args, s.batch);
    s.len      = __ldg(args.seq_lens + s.sequence);
    s.limit    = 1 << 28;
    s.first    = warp_ * pieces + piece_;
    s.step     = Warps * pieces;
    s.begins   = piece_ == 0;
    s.from     = row_ * pieces;
    s.to       = s.from + pieces - 1;
    row_ += pieces == 1 ? blocks() : beyond_all;
    return true;
  }

  PAGODA_DEVICE bool next_streamed(const Args& args, Segment& s) {
    if (at_ >= end_) return false;
    s.batch = batch_, s.head = head_;
    s.sequence   = sequence_of(args, batch_);
    s.len        = __ldg(args.seq_lens + s.sequence);
    const int nt = tiles_of<Tokens>(s.len), begin = at_ - row_;
    s.first  = begin + warp_;
    s.step   = Warps;
    s.limit  = min(nt, end_ - row_);
    s.begins = begin == 0;
    s.from = s.to = block();
    if (begin > 0 || s.limit < nt) s.from = block_of(row_), s.to = block_of(row_ + nt - 1);
    at_ = row_ + s.limit;
    if (s.limit == nt && at_ < end_) {
      row_ += nt;
      if (++head_ == args.num_kv_heads.value) {
        head_ = 0;
        do ++batch_;
        while (length_of(args, batch_) == 0);
      }
    }
    return true;
  }
  PAGODA_DEVICE int block_of(int tile) const {
    const int bounds = (each_ + 1) * longer_;
    return tile < bounds ? tile / (each_ + 1) : longer_ + (tile - bounds) / each_;
  }

  static constexpr int beyond_all = 1 << 28;  ///< rows

  int warp_;
  int row_   = 0;   ///< dealt: which row; streamed: its first tile
  int piece_ = -1;  ///< of dealt rows
  int at_ = 0, end_ = 0, each_ = 0, longer_ = 0, batch_ = 0, head_ = 0;
};

}  // namespace pagoda::tuned
