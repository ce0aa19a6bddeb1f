// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/wgmma/grouped/visible_tiles.cuh"
#include "backends/cuda/tuned/wgmma/softmax.cuh"
#include "backends/cuda/tuned/wgmma/tiles.cuh"

#include <numbers>

/// What happens between the two products: the scale, score options, and tokens that rows do not see. A lane has an
/// object for each segment. A tile is given as an int, which its member `tile` makes of the tile's index:
///  - change(x, tile) turns products into scores over scale(), and those of tokens that a row does not see into
///    -infinity,
///  - hides_any(tile) says whether there are such tokens,
///  - clear(values, tile) zeroes the values that would turn products with probabilities of 0 into NaN: those of tokens
///    that no row sees, and infinities and NaNs of tokens that some rows do not see. Then it sets *cleared,
///  - add_non_finite(o) adds these infinities and NaNs to the rows that see their tokens. Their weights do not matter.
namespace pagoda::tuned::wgmma::grouped {

/// Adds the infinities and NaNs of a token's value to the outputs of two rows. sees: whether they see the token.
template <bool Bf16, int D, int CopyTokens>
PAGODA_DEVICE void add_non_finite_value(const auto& args, const Segment& s, const PageCursor<CopyTokens>& pages,
                                        int token, int column, bool sees0, bool sees1, float (&o)[D / 2]) {
  const TokenLocation from = pages.look_up(args, s.sequence, token / CopyTokens);
  const char* const at     = static_cast<const char*>(args.v.data) + from.page * args.v.page +
                         (from.token + token % CopyTokens) * args.v.token + s.head * args.v.head;
#pragma unroll
  for (int j = 0; j < D / 8; ++j) {
    const float2 v = unpack<Bf16>(__ldg(reinterpret_cast<const unsigned*>(at) + 4 * j + column));
    const float x = isfinite(v.x) ? 0.0f : v.x, y = isfinite(v.y) ? 0.0f : v.y;
    o[4 * j] += sees0 ? x : 0.0f, o[4 * j + 1] += sees0 ? y : 0.0f;
    o[4 * j + 2] += sees1 ? x : 0.0f, o[4 * j + 3] += sees1 ? y : 0.0f;
  }
}

/// Tokens of one copy.
template <class Args>
inline constexpr int tokens_of_copy = Args::small_pages ? 1 : copy_tokens;

/// A segment without score options. A tile is the number of tokens of the sequence from its first one on.
template <class Args>
class SegmentScores {
 public:
  /// row: the lane's first, among all that share the kv head; the other is eight below.
  PAGODA_DEVICE SegmentScores(const Args& args, const Segment& s, int /*row*/) : args_(args), s_(s) {}

  PAGODA_DEVICE int tile(int index) const { return s_.len - index * tile_tokens; }
  PAGODA_DEVICE float scale() const { return args_.scale; }
  PAGODA_DEVICE bool hides_any(int tokens_left) const { return tokens_left < tile_tokens + args_.hidden_bound; }
  PAGODA_DEVICE void change(float (&x)[32], int tokens_left, int row, int column) const {
    mask_hidden(args_, x, s_.batch, tokens_left, row, column);
  }
  template <bool Bf16, int D, int Threads>
  PAGODA_DEVICE void clear(std::uint32_t values, int tokens_left, int thread, volatile int* cleared) const {
    clear_values<D, D, Threads>(values, tokens_left, thread);
    if (args_.hidden_bound > 0) {
      const bool found = clear_non_finite<Bf16, D, D, Threads>(
          values, ::max(tokens_left - hidden_tokens(args_, s_.batch), 0), min(tokens_left, tile_tokens), thread);
      if (__any_sync(~0u, found)) *cleared = 1;
    }
  }
  PAGODA_DEVICE bool may_clear_non_finite() const { return args_.hidden_bound > 0; }
  template <bool Bf16, int D>
  PAGODA_DEVICE void add_non_finite(float (&o)[D / 2], int row, int column) const {
    PageCursor<tokens_of_copy<Args>> pages;
    pages.begin(args_, s_.sequence);
    const int hidden = hidden_tokens(args_, s_.batch);
    const int seen0  = s_.len - QueryRow(args_, 0, row).hidden(hidden);
    const int seen1  = s_.len - QueryRow(args_, 0, row + 8).hidden(hidden);
#pragma unroll 1
    for (int t = max(s_.len - hidden, 0); t < s_.len; ++t) {
      const int tile = t / tile_tokens;
      if (tile < s_.first_tile || tile >= s_.end_tile() || (tile - s_.first_tile) % s_.tile_step != 0)
        continue;  // tile of another block
      add_non_finite_value<Bf16, D>(args_, s_, pages, t, column, t < seen0, t < seen1, o);
    }
  }

 private:
  const Args& args_;
  const Segment& s_;
};

/// The query token of a lane's row: what it sees, and its bias.
struct OptionRow {
  int position;    ///< of the query token in its sequence
  int begin, end;  ///< it sees tokens begin to end - 1, and the initial ones before `end`
  float slope;     ///< over scale(), which multiplies the sum of product and bias

  PAGODA_DEVICE bool sees(int token, int num_initial) const {
    return token < end && (token >= begin || token < num_initial);
  }
};

/// A segment with score options, in the order of src/kernel/score.hpp: scale, soft cap, position bias, mask. A tile is
/// the place of its first token in the sequence.
template <class Base>
class SegmentScores<OptionArgs<Base>> {
 public:
  using Args = OptionArgs<Base>;

  PAGODA_DEVICE SegmentScores(const Args& args, const Segment& s, int row) : args_(args), s_(s), visible_(args, s) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const QueryRow of(args, s.head, row + 8 * r);
      rows_[r].position = visible_.position + of.token;
      rows_[r].begin    = window_begin(args, rows_[r].position);
      rows_[r].end      = visible_.len - of.hidden(visible_.len - visible_.first_end);
      rows_[r].slope =
          args.alibi_slopes ? __ldg(args.alibi_slopes + of.head) * std::numbers::log2e_v<float> / scale() : 0;
    }
  }

  PAGODA_DEVICE int tile(int index) const { return visible_.place(index) * tile_tokens; }
  PAGODA_DEVICE float scale() const { return args_.soft_cap > 0 ? 1.0f : args_.scale; }
  PAGODA_DEVICE bool hides_any(int first) const { return visible_.hides_any(first); }

  PAGODA_DEVICE void change(float (&x)[32], int first, int /*row*/, int column) const {
    const int lane_first = first + 2 * column;  // the lane's tokens are this one, the next one, and so on in steps of 8
    if (args_.soft_cap > 0) {
      const float to_cap = args_.scale * args_.inverse_soft_cap;
#pragma unroll
      for (int e = 0; e < 32; ++e) x[e] = args_.soft_cap * tanhf(x[e] * to_cap);
    }
    if (args_.alibi_slopes) {
      // Distances are whole numbers, so that only the product with the slope is rounded, in proportion to itself.
      float distance[2];  // of the lane's first token
#pragma unroll
      for (int r = 0; r < 2; ++r) distance[r] = static_cast<float>(lane_first - rows_[r].position);
#pragma unroll
      for (int e = 0; e < 32; ++e) {
        const int r = e >> 1 & 1;
        x[e]        = fmaf(rows_[r].slope, distance[r] + static_cast<float>(8 * (e / 4) + (e & 1)), x[e]);
      }
    }
    if (!hides_any(first)) return;
#pragma unroll
    for (int e = 0; e < 32; ++e)
      if (!rows_[e >> 1 & 1].sees(lane_first + 8 * (e / 4) + (e & 1), visible_.num_initial)) x[e] = -INFINITY;
  }

  template <bool Bf16, int D, int Threads>
  PAGODA_DEVICE void clear(std::uint32_t values, int first, int thread, volatile int* cleared) const {
    constexpr int chunks = D / 8;
    bool found           = false;
#pragma unroll 1
    for (int c = thread; c < tile_tokens * chunks; c += Threads) {
      const int token        = first + c / chunks;
      const std::uint32_t at = values + swizzled_offset<D>(c / chunks, c % chunks);
      if (!visible_.seen_by_any(token))
        clear_shared(at);
      else if (!visible_.seen_by_all(token))
        found |= clear_non_finite_chunk<Bf16>(at);
    }
    if (__any_sync(~0u, found)) *cleared = 1;
  }
  PAGODA_DEVICE bool may_clear_non_finite() const { return args_.q_tokens_bound > 1; }

  template <bool Bf16, int D>
  PAGODA_DEVICE void add_non_finite(float (&o)[D / 2], int /*row*/, int column) const {
    PageCursor<tokens_of_copy<Args>> pages;
    pages.begin(args_, s_.sequence);
#pragma unroll 1
    for (int t = visible_.first_begin; t < visible_.len; ++t) {
      if (visible_.seen_by_all(t)) {
        if (t >= visible_.last_begin) t = visible_.first_end - 1;  // so are all up to that one
        continue;
      }
      const bool sees0 = rows_[0].sees(t, visible_.num_initial), sees1 = rows_[1].sees(t, visible_.num_initial);
      const int tile = visible_.index_at(t / tile_tokens);
      if (tile < s_.first_tile || tile >= s_.end_tile() || (tile - s_.first_tile) % s_.tile_step != 0)
        continue;  // tile of another block
      add_non_finite_value<Bf16, D>(args_, s_, pages, t, column, sees0, sees1, o);
    }
  }

 private:
  const Args& args_;
  const Segment& s_;
  VisibleTiles<Args> visible_;
  OptionRow rows_[2];
};

}  // namespace pagoda::tuned::wgmma::grouped
