// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/types.hpp>

#include "backends/host/simd_vec.hpp"
#include "src/kernel/join.hpp"
#include "src/kernel/rows.hpp"

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace pagoda::detail {

/// The fragment of a thread with vector registers, for rows that can be read in vectors. Interface: PortableFragment.
/// Every vector of keys or values is loaded and converted once for all R rows:
///  - scores: as many (token, row) products at once as a vector has lanes, a register each, which a transposing tree
///    then adds up into one vector of scores, already in their order in memory;
///  - values: the outputs of all rows over a few vectors of dims stay in registers through all tokens of a tile.
///
/// It may carry several heads of the same tokens (`heads`, select): rows of all heads of a token lie side by side in
/// NHD order, and only walking them together reads memory in a stream (bench/NOTES.md).
template <class Machine, class T, int R>
class SimdFragment {
 public:
  template <bool>
  using Instance                   = SimdFragment;
  using Acc                        = accumulator_t<T>;
  using Member                     = typename Machine::Member;
  static constexpr bool all_only   = false;
  static constexpr bool any_query  = true;
  static constexpr bool many_heads = true;
  static constexpr bool scaled     = is_quantized_v<T>;
  static constexpr int lane_rows   = R;
  /// Heads that are walked together have keys of at most so many bytes a token: this tile and the next, keys and
  /// values, are to stay in a second-level cache of 1 MB.
  static constexpr int walked_bytes           = Machine::walked_bytes;
  static constexpr int scratch_alignment      = 64;
  static constexpr DType probability_type     = dtype_v<Acc>;
  static constexpr std::int64_t max_row_units = std::numeric_limits<std::int64_t>::max();
  static constexpr int rows                   = R;
  static constexpr int width                  = simd_bytes / int(sizeof(Acc));
  static constexpr int tile_tokens            = 16;
  static constexpr int score_width            = width > R ? width : R;
  using Vec                                   = SimdVec<Acc, width>;
  using ScoreVec                              = SimdVec<Acc, score_width>;  ///< element j belongs to row j % R

  static bool can_run(const FragmentShape& s) { return s.wide; }

  static constexpr std::size_t scratch_bytes(int head_dim, int head_dim_v, int, int heads) {
    const std::size_t head = sizeof(Acc) * (R * (head_dim + head_dim_v) + 2 * score_width + 2 * R + 2 * scale_tokens);
    const std::size_t offsets = sizeof(std::int64_t) * (scaled ? 10 : 6) * tile_tokens;
    return (heads * head + sizeof(Acc) * (R * tile_tokens + score_width) + offsets + 63) / 64 * 64;
  }

  SimdFragment(const Member&, const KernelArgsOf<T>& args, char* memory)
      : args_(args),
        head_dim_(args.head_dim),
        head_dim_v_(args.head_dim_v),
        heads_(args.heads_per_item),
        k_head_(args.k_head),
        v_head_(args.v_head),
        base_(reinterpret_cast<Acc*>(memory)) {
    static_assert(Machine::max_workers == 1, "a worker is alone in its team: nothing is joined at the end");
    s_          = base_ + heads_ * head_elements();
    correction_ = s_ + R * tile_tokens;
    k_offset_   = reinterpret_cast<std::int64_t*>(correction_ + score_width);
    v_offset_   = k_offset_ + 2 * tile_tokens;
    k_coming_   = v_offset_ + 2 * tile_tokens;
    v_coming_   = k_coming_ + tile_tokens;
    k_scale_at_ = v_coming_ + tile_tokens;
    v_scale_at_ = k_scale_at_ + 2 * tile_tokens;
    states_     = reinterpret_cast<RowState<Acc>*>(scaled ? v_scale_at_ + 2 * tile_tokens : k_scale_at_);
    for (int h = 0; h < heads_; ++h) {
      select(h);
      std::fill(o_, o_ + R * head_dim_v_, Acc(0));
      ScoreVec::all(-infinity).store(max_);
      ScoreVec::all(0).store(sum_);
    }
  }

  static constexpr int lane_row(int j) { return j; }

  /// The head that the calls to come are about.
  void select(int head) {
    q_       = base_ + head * head_elements();
    o_       = q_ + R * head_dim_;
    max_     = o_ + R * head_dim_v_;
    sum_     = max_ + score_width;
    k_first_ = head * k_head_, v_first_ = head * v_head_;
    k_scale_ = sum_ + score_width, v_scale_ = k_scale_ + scale_tokens;
  }

  template <class Rows>
  void load_queries(const Rows& rows_of, Acc scale) {
    for (int r = 0; r < R; ++r)
      for (int d = 0; d < head_dim_; ++d) q_[r * head_dim_ + d] = rows_of.template load_query<Acc>(r, d) * scale;
  }

  /// Where the rows of the tile from token u on lie, and of the tile behind it, which is worked out only once: tiles of
  /// an item come one after another.
  template <class Where>
  void locate(const Where& where, int u, int end) {
    const int count = std::min(tile_tokens, end - u);
    int known       = 0;
    if (next_ > 0) {
      std::copy_n(k_offset_ + tile_tokens, next_, k_offset_);
      std::copy_n(v_offset_ + tile_tokens, next_, v_offset_);
      if constexpr (scaled) {
        std::copy_n(k_scale_at_ + tile_tokens, next_, k_scale_at_);
        std::copy_n(v_scale_at_ + tile_tokens, next_, v_scale_at_);
      }
      known = tile_tokens;
    }
    next_ = std::clamp(end - u - tile_tokens, 0, tile_tokens);
    for (int n = known; n < count + next_; ++n) {
      const PagePlace place = where.place(u + n);
      const TokenRow row    = where.row(place);
      k_offset_[n] = row.k, v_offset_[n] = row.v;
      if constexpr (scaled) {
        k_scale_at_[n] = locate_scale(args_.k_scale, place, where.kv_head);
        v_scale_at_[n] = locate_scale(args_.v_scale, place, where.kv_head);
      }
    }
    for (int n = count; n < tile_tokens && next_ == 0; ++n) k_offset_[n] = k_offset_[count - 1];  // read, but not used
    if constexpr (scaled) {
      const int first = R * (head_dim_ + head_dim_v_) + 2 * score_width;
      load_scales(args_.k_scale, k_scale_at_, count, base_ + first);
      load_scales(args_.v_scale, v_scale_at_, count, base_ + first + scale_tokens);
    }
    count_        = count;
    coming_token_ = tile_tokens, coming_head_ = 0;
  }

  /// Of the selected head, for the tokens that locate has found.
  template <class Where>
  void multiply_keys(const Where&, int, int) {
    line_up();
    const T* const k = static_cast<const T*>(args_.k);
    Coming coming(k, k_coming_, head_dim_);
    for (int n = 0; n < count_; n += block_tokens)
      for (int r = 0; r < R; r += block_rows) score_block(k, n, r, coming);
    if constexpr (scaled)
      if (args_.k_scale.per_token()) weigh(k_scale_);
    for (int i = count_ * R; i < vectors() * score_width; ++i) s_[i] = -infinity;
  }

  template <class Change>
  void for_each_score(int count, const Change& change) {
    for (int n = 0; n < count; ++n)
      for (int r = 0; r < R; ++r) change(r, n, s_[n * R + r]);
  }

  /// As PortableFragment does it, but in vectors throughout: the running (max, sum) are kept a lane each; the lanes of
  /// a row hold the same maximum, and their sums are added in the end.
  void softmax() {
    const int n    = vectors();
    auto most      = ScoreVec::load(max_);
    const auto old = most;
    for (int i = 0; i < n; ++i) most.raise_to(ScoreVec::load(s_ + i * score_width));
    raise_to_turned<score_width / 2>(most);
    most.store(max_);
    const ScoreVec base   = most.finite_or_zero();  // no token seen yet: every exponent is -infinity
    const auto correction = ScoreVec::exp2_difference(old, base);
    correction.store(correction_);
    auto total = ScoreVec::all(0);
    for (int i = 0; i < n; ++i) {
      const auto p = ScoreVec::exp2_difference(ScoreVec::load(s_ + i * score_width), base);
      p.store(s_ + i * score_width);
      total += p;
    }
    total.add_product(correction, ScoreVec::load(sum_));
    total.store(sum_);
  }

  template <class Where>
  void multiply_values(const Where&, int, int) {
    const T* const v = static_cast<const T*>(args_.v);
    Coming coming(v, v_coming_, head_dim_v_);
    if constexpr (scaled)
      if (args_.v_scale.per_token()) weigh(v_scale_);  // behind their sum
    values_from<value_block>(v, 0, coming);
  }

  /// States of all heads.
  StateArray<Acc> finish() {
    for (int h = 0; h < heads_; ++h) {
      select(h);
      for (int r = 0; r < R; ++r) {
        Acc sum = 0;
        for (int j = r; j < score_width; j += R) sum += sum_[j];
        states_[h * R + r] = {max_[r], sum};
      }
    }
    select(0);
    return {states_, o_, head_dim_v_, 0, 0, R, head_elements()};
  }

 private:
  static constexpr Acc infinity = Kokkos::Experimental::infinity_v<Acc>;
  /// Scores are made as many at once as a vector has lanes: so many tokens by so many rows.
  static constexpr int block_rows   = R < width ? R : width;
  static constexpr int block_tokens = width / block_rows;
  static constexpr int per_element  = dims_per_element_v<T>;
  static constexpr int line_dims    = 64 / int(sizeof(T)) * per_element;  ///< of a cache line
  static_assert(tile_tokens % block_tokens == 0, "a tile is whole blocks of scores");
  /// Half of the registers hold sums; the other half is left to operands.
  static constexpr int value_block = std::max(1, std::min(8, simd_registers / 2 / R));

  static constexpr int scale_tokens = scaled ? tile_tokens : 0;

  int head_elements() const { return R * (head_dim_ + head_dim_v_) + 2 * score_width + 2 * scale_tokens; }
  int vectors() const { return (count_ * R + score_width - 1) / score_width; }

  /// The rows of the next tile that are prefetched while one head of this one is at work, line after line.
  struct Coming {
    const char *at, *end;
    const T* base;
    const std::int64_t* row;
    int left;  ///< rows, this one included
    int bytes;

    Coming(const T* from, const std::int64_t* offsets, int dims)
        : base(from), row(offsets), left(tile_tokens), bytes(dims / per_element * int(sizeof(T))) {
      aim();
    }
    void aim() { at = reinterpret_cast<const char*>(base + *row), end = at + bytes; }
    void line() {
      Machine::prefetch_line(at);
      at += 64;
      if (at < end) return;
      if (left > 1) --left, ++row;
      aim();
    }
    /// The lines that are due beside `Dims` of work, as work number `i` of that size.
    template <int Dims>
    void beside(int i) {
      if constexpr (Dims >= line_dims) {
        for (int l = 0; l < Dims / line_dims; ++l) line();
      } else {
        if (i % (line_dims / Dims) == 0) line();
      }
    }
  };

  /// Which rows those are: the next so many in the order of memory, all heads of a token, then the next token. Where
  /// there are none, a row at hand.
  void line_up() {
    for (int n = 0; n < tile_tokens; ++n) {
      const bool any = coming_token_ < tile_tokens + next_;
      k_coming_[n]   = any ? k_offset_[coming_token_] + coming_head_ * k_head_ : k_offset_[0];
      v_coming_[n]   = any ? v_offset_[coming_token_] + coming_head_ * v_head_ : v_offset_[0];
      if (any && ++coming_head_ == heads_) coming_head_ = 0, ++coming_token_;
    }
  }

  /// Where the scale of a token lies, of the item's first head. The lines of all heads are asked for: most scales lie
  /// head by head.
  std::int64_t locate_scale(const ScaleArray& scale, const PagePlace& place, int kv_head) const {
    if (!scale.per_token()) return 0;
    const std::int64_t at = scale.offset(place.page, place.slot) + std::int64_t(kv_head) * scale.head;
    Machine::prefetch_line(scale.at + at);
    Machine::prefetch_line(scale.at + at + std::int64_t(heads_ - 1) * scale.head);
    return at;
  }

  /// Scales of the tile's tokens, for every head; to: where the first head's belong.
  void load_scales(const ScaleArray& scale, const std::int64_t* at, int count, Acc* to) const {
    if (!scale.per_token()) return;
    for (int n = 0; n < count; ++n)
      for (int h = 0; h < heads_; ++h) to[h * head_elements() + n] = scale.of_token(at[n], h);
  }

  /// The tile's scores or probabilities, each times the scale of its token. Those behind the tile's tokens are
  /// nobody's.
  void weigh(const Acc* scales) { weigh_from<0>(SimdVec<Acc, tile_tokens>::load(scales)); }
  template <int Token>
  void weigh_from(const SimdVec<Acc, tile_tokens>& scales) {
    if constexpr (Token < tile_tokens) {
      auto s = ScoreVec::load(s_ + Token * R);
      s.multiply(scales.template spread<score_width, R, Token>());
      s.store(s_ + Token * R);
      weigh_from<Token + score_width / R>(scales);
    }
  }

  /// Scores of `block_tokens` tokens from n on and `block_rows` rows from r on.
  void score_block(const T* k, int n, int r0, Coming& coming) {
    const T* key[block_tokens];
    for (int t = 0; t < block_tokens; ++t) key[t] = k + k_first_ + k_offset_[n + t];
    const Acc* const q = q_ + r0 * head_dim_;
    const int stride   = head_dim_;
    Vec sum[width];
    for (int i = 0; i < width; ++i) sum[i] = Vec::all(0);
    for (int d = 0; d < stride; d += width) {
      if (r0 == 0) coming.template beside<block_tokens * width>(d / width);
      Vec x[block_tokens];
      for (int t = 0; t < block_tokens; ++t) x[t] = Vec::load(key[t] + d / per_element);
      for (int r = 0; r < block_rows; ++r) {
        auto y = Vec::load(q + r * stride + d);
        y.keep();
        for (int t = 0; t < block_tokens; ++t) sum[t * block_rows + r].add_product(x[t], y);
      }
    }
    Vec::template transpose_sum<width>(sum);
    sum[0].store(s_ + n * R + r0);
  }

  /// most becomes the maximum over the lanes of its row, in all of them.
  template <int H>
  static void raise_to_turned(ScoreVec& most) {
    if constexpr (H >= R) {
      most.raise_to(most.template turned<H>());
      raise_to_turned<H / 2>(most);
    }
  }

  /// Outputs from dim d on, B vectors at a time.
  template <int B>
  void values_from(const T* v, int d, Coming& coming) {
    for (; d + B * width <= head_dim_v_; d += B * width) value_block_at<B>(v, d, coming);
    if constexpr (B > 1) values_from<B / 2>(v, d, coming);
  }

  template <int B>
  void value_block_at(const T* v, int d, Coming& coming) {
    const int stride = head_dim_v_;
    const Acc* p     = s_;
    Vec sum[R][B];
    for (int r = 0; r < R; ++r)
      for (int b = 0; b < B; ++b) sum[r][b] = Vec::all(0);
    for (int n = 0; n < count_; ++n, p += R) {
      const T* const row = v + v_first_ + v_offset_[n] + d / per_element;
      coming.template beside<B * width>(n);
      Vec x[B];
      for (int b = 0; b < B; ++b) x[b] = Vec::load(row + b * width / per_element);
      for (int r = 0; r < R; ++r)
        for (int b = 0; b < B; ++b) sum[r][b].add_product(p[r], x[b]);
    }
    // A tile is summed apart and then added, so rounding grows with the number of tiles, not of tokens.
    for (int r = 0; r < R; ++r)
      for (int b = 0; b < B; ++b) {
        Acc* const o = o_ + r * stride + d + b * width;
        sum[r][b].add_product(correction_[r], Vec::load(o));
        sum[r][b].store(o);
      }
  }

  const KernelArgsOf<T>& args_;
  int head_dim_, head_dim_v_, count_ = 0;
  int next_ = 0;  ///< tokens of the tile behind this one whose rows are known
  int heads_;
  std::int64_t k_head_, v_head_;
  std::int64_t k_first_ = 0, v_first_ = 0;  ///< where the selected head's rows lie behind the first's
  int coming_token_ = 0, coming_head_ = 0;  ///< the row to prefetch next
  Acc* base_;
  Acc* q_;                                  ///< [R][head_dim], of the selected head
  Acc* o_;                                  ///< [R][head_dim_v], of the selected head
  Acc *max_, *sum_;                         ///< [score_width], of the selected head
  Acc *k_scale_, *v_scale_;                 ///< [tile_tokens], of the selected head; quantized types alone
  Acc* s_;                                  ///< [tile_tokens][R]
  Acc* correction_;                         ///< [score_width]
  std::int64_t *k_coming_, *v_coming_;      ///< [tile_tokens]
  std::int64_t *k_offset_, *v_offset_;      ///< [2][tile_tokens]: of this tile and of the next
  std::int64_t *k_scale_at_, *v_scale_at_;  ///< the same of scales; quantized types alone
  RowState<Acc>* states_;                   ///< [heads][R]
};

}  // namespace pagoda::detail
