// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/warp/tiles.cuh"
#include "backends/cuda/tuned/warp/visible_tiles.cuh"

#include <concepts>
#include <numbers>

/// What happens between the two products: the scale, score options, and tokens that the query does not see. The
/// accumulators (product_*.cuh) take an object for each tile:
///  - of(product, token) is the score of a token of the tile,
///  - hides(token) says whether the query token does not see it; hides_any() whether there is such a token,
///  - clear(tile, lane) zeroes the values of hidden tokens.
namespace pagoda::tuned::warp {

/// Zeroes the rows of a tile of values from `count` on. Memory behind the last token may hold anything, and 0 times a
/// NaN or an infinity is not 0.
template <class TileShape, class Copies>
PAGODA_DEVICE void clear_rows(std::uint32_t tile, int count, int lane) {
  constexpr int chunks = TileShape::row_bytes / 16;
  for (int i = lane; i < (TileShape::tokens - count) * chunks; i += 32)
    clear_shared(tile + TileShape::offset(count + i / chunks, i % chunks));
  Copies::order_stores();
  __syncwarp();
}
/// Zeroes the rows whose bits are set in `rows`, at least one.
template <class TileShape, class Copies>
PAGODA_DEVICE void clear_rows_of(std::uint32_t tile, unsigned rows, int lane) {
  constexpr int chunks = TileShape::row_bytes / 16;
#pragma unroll 1
  for (int i = lane; i < TileShape::tokens * chunks; i += 32)
    if (rows >> i / chunks & 1) clear_shared(tile + TileShape::offset(i / chunks, i % chunks));
  Copies::order_stores();
  __syncwarp();
}

/// A tile without score options. Its first `count` tokens belong to the sequence.
struct PlainTileScores {
  int count;
  float scale;  ///< of products, to base 2

  PAGODA_DEVICE float of(float product, int) const { return product * scale; }
  PAGODA_DEVICE bool hides_any() const { return count < tile_tokens; }
  PAGODA_DEVICE bool hides(int token) const { return token >= count; }
  template <class TileShape, class Copies>
  PAGODA_DEVICE void clear(std::uint32_t tile, int lane) const {
    clear_rows<TileShape, Copies>(tile, count, lane);
  }
};

/// A tile with score options, in the order of src/kernel/score.hpp: scale, soft cap, position bias, mask.
struct OptionTileScores {
  float scale;                       ///< of products, to base 2
  float soft_cap, inverse_soft_cap;  ///< base 2; 0: off
  float slope;                       ///< of the lane's query row, base 2
  int distance;                      ///< of the tile's first token from the query token
  unsigned hidden;                   ///< bit i: token i of the tile is hidden

  PAGODA_DEVICE float of(float product, int token) const {
    float score = product * scale;
    if (soft_cap > 0) score = soft_cap * tanhf(score * inverse_soft_cap);
    return fmaf(slope, static_cast<float>(distance + token), score);
  }
  PAGODA_DEVICE bool hides_any() const { return hidden != 0; }
  PAGODA_DEVICE bool hides(int token) const { return (hidden >> token & 1) != 0; }
  template <class TileShape, class Copies>
  PAGODA_DEVICE void clear(std::uint32_t tile, int lane) const {
    clear_rows_of<TileShape, Copies>(tile, hidden, lane);
  }
};

/// Factor of products: softmax_scale, the keys' scale and log2(e).
PAGODA_DEVICE float scale_of(const Args& args, int kv_head) {
  return args.scale * (args.k.scale ? __ldg(args.k.scale + kv_head * args.k.scale_head) : 1.0f);
}

/// The tiles of a segment and kv head.
template <class Args, class Segment>
class SegmentScores {
 public:
  /// row: the lane's query row, counted from the first that shares the kv head; group_size: their number.
  PAGODA_DEVICE SegmentScores(const Args& args, const Segment& s, int kv_head, int, int)
      : len_(s.len), scale_(scale_of(args, kv_head)) {}
  PAGODA_DEVICE PlainTileScores of_tile(int tile) const { return {len_ - tile * tile_tokens, scale_}; }

 private:
  int len_;
  float scale_;
};

template <std::derived_from<OptionArgs> Args, class Segment>
class SegmentScores<Args, Segment> {
 public:
  PAGODA_DEVICE SegmentScores(const OptionArgs& args, const Segment& s, int kv_head, int row, int group_size)
      : args_(args), len_(__ldg(args.seq_lens + s.sequence)), scale_(scale_of(args, kv_head)) {
    window_begin_ = window_begin(args, len_), skipped_ = skipped_tiles(args, len_);
    if (args.alibi_slopes) {
      const int head = kv_head * group_size + min(row, group_size - 1);
      slope_         = __ldg(args.alibi_slopes + head) * std::numbers::log2e_v<float>;
    }
  }
  /// tile: its index among the tiles that are read.
  PAGODA_DEVICE OptionTileScores of_tile(int tile) const {
    const int first       = tile_tokens * (tile < args_.initial_tiles ? tile : tile + skipped_);
    const unsigned hidden = hidden_tokens(args_, first, len_, window_begin_);
    return {scale_, args_.soft_cap, args_.inverse_soft_cap, slope_, first - (len_ - 1), hidden};
  }

 private:
  const OptionArgs& args_;
  int len_, window_begin_, skipped_;
  float scale_, slope_ = 0;
};

/// The same for the kv heads that a warp reads at once. The segment's head is then their number.
template <int Heads, class Args, class Segment>
struct HeadScores {
  SegmentScores<Args, Segment> heads[Heads];

  PAGODA_DEVICE static HeadScores of(const Args& args, const Segment& s, int row) {
    if constexpr (Heads == 1) {
      return {{{args, s, s.head, row, args.group_size}}};
    } else {
      const int group_size = args.group_size / Heads;
      return {{{args, s, Heads * s.head, row, group_size}, {args, s, Heads * s.head + 1, row, group_size}}};
    }
  }
};

}  // namespace pagoda::tuned::warp
