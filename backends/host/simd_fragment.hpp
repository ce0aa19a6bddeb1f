// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/types.hpp>

#include "backends/host/simd_vec.hpp"
#include "src/kernel/fragment.hpp"
#include "src/kernel/join.hpp"
#include "src/kernel/rows.hpp"

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace pagoda::detail {

/// The fragment of a thread with vector registers, for rows whose dims lie side by side, of any length and at any
/// address: where the dims do not fill the last vector, only those there are are read. Interface: PortableFragment.
/// Every vector of keys or values is loaded and converted once for all R rows:
///  - scores: as many (token, row) products at once as a vector has lanes, a register each, which a transposing tree
///    then adds up into one vector of scores, already in their order in memory. Where there are registers enough, half
///    of them at once, and the tree of one half is worked beside the products of the next: products alone fill the
///    multiply-add units, a tree by itself leaves them idle;
///  - values: the outputs of all rows over a few vectors of dims stay in registers through all tokens of a tile.
///
/// It may carry several heads of the same tokens (`heads`, select): rows of all heads of a token lie side by side in
/// NHD order, and only walking them together reads memory in a stream (bench/NOTES.md).
template <class Machine, class T, int R>
class SimdFragment : public FragmentDefaults<T> {
 public:
  template <bool>
  using Instance                   = SimdFragment;
  using Acc                        = accumulator_t<T>;
  using Member                     = typename Machine::Member;
  static constexpr bool any_query  = true;
  static constexpr bool many_heads = true;
  using FragmentDefaults<T>::scaled;
  using FragmentDefaults<T>::block_dims;
  static constexpr int lane_rows = R;
  /// Heads that are walked together have keys of at most so many bytes a token: this tile and the next, keys and
  /// values, are to stay in a second-level cache of 1 MB.
  static constexpr int walked_bytes           = Machine::walked_bytes;
  static constexpr int scratch_alignment      = 64;
  static constexpr DType probability_type     = dtype_v<Acc>;
  static constexpr std::int64_t max_row_units = std::numeric_limits<std::int64_t>::max();
  static constexpr int rows                   = R;
  static constexpr int width                  = simd_bytes / int(sizeof(Acc));
  /// Twice as many are faster but where memory is all that counts: less of it is under way.
  static constexpr int tile_tokens = R == 1 ? 16 : 32;
  static constexpr int score_width = width > R ? width : R;
  using Vec                        = SimdVec<Acc, width>;
  using ScoreVec                   = SimdVec<Acc, score_width>;  ///< element j belongs to row j % R

  static constexpr int row_alignment = 1;
  static bool can_run(const FragmentShape& s) { return s.dense_dims; }

  static constexpr std::size_t scratch_bytes(int head_dim, int head_dim_v, int, int heads) {
    const int elements        = R * (padded(head_dim, width) + padded(head_dim_v, output_width));
    const std::size_t head    = sizeof(Acc) * (elements + 2 * score_width + 2 * R + 2 * scale_tokens);
    const std::size_t offsets = sizeof(Rows) + sizeof(std::int64_t) * (scaled ? 8 : 4) * tile_tokens;
    const std::size_t blocks  = sizeof(Acc) * tile_tokens * (blocks_stride(head_dim) + blocks_stride(head_dim_v));
    return (heads * head + sizeof(Acc) * (R * tile_tokens + score_width) + offsets + blocks + 63) / 64 * 64;
  }

  SimdFragment(const Member&, const KernelArgsOf<T>& args, char* memory)
      : args_(args),
        head_dim_(args.head_dim),
        head_dim_v_(args.head_dim_v),
        heads_(args.heads_per_item),
        value_stride_(padded(args.head_dim_v, output_width)),
        k_head_(args.k_head),
        v_head_(args.v_head),
        base_(reinterpret_cast<Acc*>(memory)),
        key_stride_(padded(args.head_dim, width)),
        head_elements_(R * (key_stride_ + value_stride_) + 2 * score_width + 2 * scale_tokens) {
    static_assert(Machine::max_workers == 1, "a worker is alone in its team: nothing is joined at the end");
    if constexpr (paired) pairs_ = args.q.type == DType::bf16;
    s_          = base_ + heads_ * head_elements_;
    correction_ = s_ + R * tile_tokens;
    k_blocks_   = correction_ + score_width;
    v_blocks_   = k_blocks_ + tile_tokens * blocks_stride(head_dim_);
    rows_       = reinterpret_cast<Rows*>(v_blocks_ + tile_tokens * blocks_stride(head_dim_v_));
    k_offset_   = reinterpret_cast<std::int64_t*>(rows_ + 1);
    v_offset_   = k_offset_ + 2 * tile_tokens;
    k_scale_at_ = v_offset_ + 2 * tile_tokens;
    v_scale_at_ = k_scale_at_ + 2 * tile_tokens;
    states_     = reinterpret_cast<RowState<Acc>*>(scaled ? v_scale_at_ + 2 * tile_tokens : k_scale_at_);
    for (int h = 0; h < heads_; ++h) {
      select(h);
      std::fill(o_, o_ + R * value_stride_, Acc(0));
      ScoreVec::all(-infinity).store(max_);
      ScoreVec::all(0).store(sum_);
    }
  }

  static constexpr int lane_row(int j) { return j; }

  /// The head that the calls to come are about.
  void select(int head) {
    head_    = head;
    q_       = base_ + head * head_elements_;
    o_       = q_ + R * key_stride_;
    max_     = o_ + R * value_stride_;
    sum_     = max_ + score_width;
    k_first_ = head * k_head_, v_first_ = head * v_head_;
    k_scale_ = sum_ + score_width, v_scale_ = k_scale_ + scale_tokens;
  }

  template <class Rows>
  void load_queries(const Rows& rows_of, Acc scale) {
    scale_           = scale;
    const int length = pairs_ ? 2 * width : width;  // of a vector of queries
    for (int r = 0; r < R; ++r)
      for (int d = 0; d < head_dim_; d += length) {
        Acc x[2 * width] = {};  // zeros beyond the last dim
        rows_of.load_query_dims(r, d, std::min(length, head_dim_ - d), x);
        const int at = (d / length * R + r) * length;
        if (pairs_) {
          for (int i = 0; i < 2 * width; ++i)
            reinterpret_cast<bfloat16_t*>(q_)[at + i] = bfloat16_t(static_cast<float>(x[i]));
        } else {
          for (int i = 0; i < width; ++i) q_[at + i] = x[i] * scale;
        }
      }
  }

  /// Tokens of a whole tile of 32 take turns in an order without steps that repeat: a processor that found the distance
  /// of one row to the next would fetch more of them, from beyond the page, as memory that nobody asked for.
  static constexpr std::int8_t turns[32]    = {9, 24, 14, 10, 28, 1,  5, 3,  22, 21, 13, 12, 23, 16, 27, 6,
                                               7, 29, 8,  25, 0,  26, 2, 30, 20, 31, 19, 11, 4,  17, 18, 15};
  static constexpr std::int8_t place_of[32] = {20, 5,  22, 7,  28, 6, 15, 16, 18, 0,  3,  27, 11, 10, 2,  31,
                                               13, 29, 30, 26, 24, 9, 8,  12, 1,  19, 21, 14, 4,  17, 23, 25};
  /// Which of a tile's `count` tokens is the n-th, and the reverse.
  static int turn(int n, int count) { return count == 32 ? turns[n] : n; }
  static int place_in_turn(int token, int count) { return count == 32 ? place_of[token] : token; }

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
      const PagePlace place =
          where.place(u + (n < tile_tokens ? turn(n, count) : tile_tokens + turn(n - tile_tokens, next_)));
      const TokenRow row = where.row(place);
      k_offset_[n] = row.k, v_offset_[n] = row.v;
      if constexpr (scaled) {
        k_scale_at_[n] = locate_scale(k_scales(), place, where.kv_head);
        v_scale_at_[n] = locate_scale(v_scales(), place, where.kv_head);
      }
    }
    for (int n = count; n < tile_tokens && next_ == 0; ++n) {
      k_offset_[n] = k_offset_[count - 1], v_offset_[n] = v_offset_[count - 1];  // read, but not used
    }
    if constexpr (scaled) {
      const int first = R * (key_stride_ + value_stride_) + 2 * score_width;
      load_scales(args_.k_scale, k_scale_at_, count, base_ + first);
      load_scales(args_.v_scale, v_scale_at_, count, base_ + first + scale_tokens);
    }
    count_        = count;
    coming_token_ = 0, coming_head_ = 0;
  }

  /// Of the selected head, for the tokens that locate has found.
  template <class Where>
  void multiply_keys(const Where&, int, int) {
    line_up();
    if constexpr (block_dims > 0) {
      convert_blocks(args_.k_blocks, k_scale_at_, head_dim_, k_blocks_);
      convert_blocks(args_.v_blocks, v_scale_at_, head_dim_v_, v_blocks_);
    }
    if constexpr (paired)
      if (pairs_) head_dim_ % (2 * width) == 0 ? score_tile<true, false>() : score_tile<true, true>();
    if (!pairs_) head_dim_ % width == 0 ? score_tile<false, false>() : score_tile<false, true>();
    if constexpr (scaled)
      if (args_.k_scale.per_token()) weigh(k_scale_);
    for (int i = count_ * R; i < vectors() * score_width; ++i) s_[i] = -infinity;
  }

  template <class Change>
  void for_each_score(int count, const Change& change) {
    for (int n = 0; n < count; ++n)
      for (int r = 0; r < R; ++r) change(r, turn(n, count), s_[n * R + r]);
  }

  /// As PortableFragment does it, but in vectors throughout: the running (max, sum) are kept a lane each; the lanes of
  /// a row hold the same maximum, and their sums are added in the end.
  void softmax(bool hides) {
    if (hides) note_hidden();
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
  void multiply_values(const Where&, int, int, bool hides) {
    if constexpr (scaled)
      if (args_.v_scale.per_token()) weigh(v_scale_);  // behind their sum
    if (!hides) return values_from<value_block>(0);
    for (int d = 0; d < head_dim_v_; d += width) value_block_at<1, true, true>(d);
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
    return {states_, o_, value_stride_, 0, 0, R, head_elements_};
  }

 private:
  static constexpr Acc infinity = Kokkos::Experimental::infinity_v<Acc>;
  /// A vector of scores: so many tokens by so many rows.
  static constexpr int vector_rows   = R < width ? R : width;
  static constexpr int vector_tokens = width / vector_rows;
  /// It is made of so many units of sums.
  static constexpr int units       = simd_registers >= 32 && width >= 8 ? 2 : 1;
  static constexpr int unit        = width / units;
  static constexpr int unit_rows   = std::min(vector_rows, units > 1 ? 4 : width);
  static constexpr int unit_tokens = unit / unit_rows;
  static constexpr int per_element = dims_per_element_v<T>;
  static constexpr int line_dims   = 64 / int(sizeof(T)) * per_element;  ///< of a cache line
  static_assert(tile_tokens % vector_tokens == 0, "a tile is whole vectors of scores");
  /// There are products of pairs in bfloat16. Their queries stay as they are: scores are scaled instead.
#if defined(__AVX512BF16__)
  static constexpr bool paired = std::is_same_v<T, bfloat16_t> && std::is_same_v<Acc, float>;
#else
  static constexpr bool paired = false;
#endif
  /// Half of the registers hold sums; the other half is left to operands.
  static constexpr int value_block = std::max(1, std::min(8, simd_registers / 2 / R));

  static constexpr int scale_tokens = scaled ? tile_tokens : 0;
  static constexpr int output_width = std::max(width, 4);  ///< states are joined in quads

  static_assert(block_dims % width == 0, "a vector has dims of one block alone");
  /// Converted block scales of a row, padded to whole vectors.
  static constexpr int blocks_stride(int dims) {
    return block_dims > 0 ? padded(blocks_of(dtype_v<T>, dims), width) : 0;
  }

  int vectors() const { return (count_ * R + score_width - 1) / score_width; }

  /// The selected head's rows of the tile, then those that are prefetched while it is at work.
  struct Rows {
    const T *key[2 * tile_tokens], *value[2 * tile_tokens];
  };

  /// Prefetched are the next so many rows in the order of memory, all heads of a token, then the next token. Where
  /// there are none, a row at hand.
  void line_up() {
    const T* const k     = static_cast<const T*>(args_.k);
    const T* const v     = static_cast<const T*>(args_.v);
    const T **const keys = rows_->key, **const values = rows_->value;
    for (int n = 0; n < tile_tokens; ++n) keys[n] = k + (k_first_ + k_offset_[n]);
    for (int n = 0; n < tile_tokens; ++n) values[n] = v + (v_first_ + v_offset_[n]);

    const int heads = heads_, left = (next_ - coming_token_) * heads - coming_head_;
    const int end = tile_tokens + (next_ > 0 ? std::min(left, tile_tokens) : 0);
    int head      = coming_head_;
    for (int n = tile_tokens; n < end;) {
      const int place   = tile_tokens + place_in_turn(coming_token_, next_);
      const T* key      = k + (k_offset_[place] + head * k_head_);
      const T* value    = v + (v_offset_[place] + head * v_head_);
      const int run_end = std::min(end, n + heads - head);
      head += run_end - n;
      for (; n < run_end; ++n, key += k_head_, value += v_head_) keys[n] = key, values[n] = value;
      if (head == heads) head = 0, ++coming_token_;
    }
    coming_head_ = head;
    std::fill(keys + end, keys + 2 * tile_tokens, keys[0]);
    std::fill(values + end, values + 2 * tile_tokens, values[0]);
  }

  /// The lines of a row that begin at its dims d .. d + Dims.
  template <int Dims>
  [[gnu::always_inline]] static void prefetch_dims(const T* row, int d) {
    if constexpr (Dims >= line_dims) {
      for (int l = 0; l < Dims; l += line_dims) Machine::prefetch_line(row + l / per_element);
    } else {
      if (d % line_dims == 0) Machine::prefetch_line(row);
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

  /// The same of a row's block scales.
  std::int64_t locate_scale(const BlockScaleArray& scales, const PagePlace& place, int kv_head) const {
    const std::int64_t at   = scales.offset(place.page, place.slot, kv_head);
    const auto* const first = static_cast<const char*>(scales.at) + at;
    Machine::prefetch_line(first);
    Machine::prefetch_line(first + std::int64_t(heads_ - 1) * scales.head);
    return at;
  }
  /// What locate_scale is asked for.
  const auto& k_scales() const {
    if constexpr (block_dims > 0) {
      return args_.k_blocks;
    } else {
      return args_.k_scale;
    }
  }
  const auto& v_scales() const {
    if constexpr (block_dims > 0) {
      return args_.v_blocks;
    } else {
      return args_.v_scale;
    }
  }

  /// Block scales of the tile's tokens, of the selected head, as floats. Rows beyond the tokens have some, too: their
  /// scores are not used.
  void convert_blocks(const BlockScaleArray& scales, const std::int64_t* at, int dims, Acc* to) const {
    using Scale      = block_scale_t<T>;
    const int blocks = blocks_of(dtype_v<T>, dims), stride = blocks_stride(dims);
    for (int n = 0; n < tile_tokens; ++n, to += stride) {
      const std::int64_t row  = at[std::min(n, count_ - 1)] + std::int64_t(head_) * scales.head;
      const auto* const first = static_cast<const Scale*>(scales.at) + row;
      if constexpr (Element<Scale>) {
        if (scales.block == 1) {
          for (int b = 0; b < blocks; b += width) Vec::load_part(first + b, std::min(width, blocks - b)).store(to + b);
          continue;
        }
      }
      for (int b = 0; b < blocks; ++b) to[b] = static_cast<Acc>(first[b * std::int64_t(scales.block)]);
    }
  }

  /// Scales of the tile's tokens, for every head; to: where the first head's belong.
  void load_scales(const ScaleArray& scale, const std::int64_t* at, int count, Acc* to) const {
    if (!scale.per_token()) return;
    for (int n = 0; n < count; ++n)
      for (int h = 0; h < heads_; ++h) to[h * head_elements_ + n] = scale.of_token(at[n], h);
  }

  /// Before the softmax: a token that a row does not see has a score of -infinity.
  [[gnu::noinline]] void note_hidden() {
    for (int r = 0; r < R; ++r) {
      hidden_[r] = 0;
      for (int n = 0; n < count_; ++n) hidden_[r] |= static_cast<std::uint32_t>(s_[n * R + r] == -infinity) << n;
    }
  }

  /// The tile's scores or probabilities, each times the scale of its token. Those behind the tile's tokens are
  /// nobody's.
  void weigh(const Acc* scales) {
    for (int n = 0; n < count_; n += width) weigh_from<0>(s_ + n * R, Vec::load(scales + n));
  }
  template <int Token>
  static void weigh_from(Acc* scores, const Vec& scales) {
    if constexpr (Token < width) {
      auto s = ScoreVec::load(scores + Token * R);
      s.multiply(scales.template spread<score_width, R, Token>());
      s.store(scores + Token * R);
      weigh_from<Token + score_width / R>(scores, scales);
    }
  }

  /// The trees that add up sums into scores. Each level halves how many vectors there are; a unit's has all levels but
  /// the one that joins two units.
  template <bool Pairs>
  struct Trees {
    Vec scale;
    Vec sum[unit];  ///< of the unit whose tree is being worked
    Vec first;      ///< what became of a vector's first unit
    Acc* to;        ///< where the vector's scores belong

    static constexpr int joining = units == 1 ? 0 : unit_rows < vector_rows ? vector_rows : width;
    static constexpr int level(int lanes) { return lanes == joining ? lanes / 2 : lanes; }

    /// Steps First .. End of the tree of a vector's unit number Unit.
    template <int Unit, int First, int End>
    void step() {
      if constexpr (First < End) {
        if constexpr (First < unit - 1) {
          halve<First, unit, level(width)>();
        } else if constexpr (Unit < units - 1) {
          first = sum[0];
        } else {
          if constexpr (units > 1) sum[0] = Vec::template halves_added<joining>(first, sum[0]);
          if constexpr (Pairs) sum[0].multiply(scale);
          sum[0].store(to);
        }
        step<Unit, First + 1, End>();
      }
    }

   private:
    template <int Step, int Count, int Lanes>
    void halve() {
      if constexpr (Step < Count / 2) {
        sum[Step] = Vec::template halves_added<Lanes>(sum[Step], sum[Step + Count / 2]);
        sum[Step].keep();
      } else {
        halve<Step - Count / 2, Count / 2, level(Lanes / 2)>();
      }
    }
  };

  /// Part: the dims do not fill the last vector.
  template <bool Pairs, bool Part>
  [[gnu::noinline, gnu::flatten]] void score_tile() {
    Trees<Pairs> trees;
    trees.scale = Vec::all(scale_), trees.first = Vec::all(0), trees.to = s_;
    for_constants<unit>([&](auto i) { trees.sum[i] = Vec::all(0); });
    for (int n = 0; n < count_; n += vector_tokens)
      for (int r = 0; r < R; r += vector_rows) {
        score_unit<0, Part>(n, r, trees);
        if constexpr (units > 1) score_unit<1, Part>(n, r, trees);
      }
    if constexpr (units > 1) trees.template step<units - 1, 0, unit>();
  }

  /// Products of a unit: of the vector of scores for tokens from n and rows from r on, the Unit-th.
  template <int Unit, bool Part, bool Pairs>
  void score_unit(int n, int r, Trees<Pairs>& trees) {
    constexpr int dims        = Pairs ? 2 * width : width;
    const T* const* const key = rows_->key + n;
    const UnitRows of{key, key + (n + vector_tokens < count_ ? vector_tokens : 0),
                      q_ + (r + (unit_rows < vector_rows ? Unit * unit_rows : 0)) * width,
                      k_blocks_ + n * blocks_stride(head_dim_)};
    Vec sum[unit];
    for_constants<unit>([&](auto i) { sum[i] = Vec::all(0); });
    constexpr int before = units > 1 ? 1 - Unit : 0;  // whose tree is worked meanwhile
    int d                = 0;
    if constexpr (units > 1) {
      if ((Part ? padded(head_dim_, dims) : head_dim_) >= unit * width) {
        add_beside<Unit, 0, Part>(of, sum, trees);
        d = unit * width;
      } else {
        trees.template step<before, 0, unit>();
      }
    }
    for (; d < head_dim_ - (Part ? dims : 0); d += dims) add_products<Unit, Pairs, false>(of, d, sum);
    if constexpr (Part)
      if (d < head_dim_) add_products<Unit, Pairs, true>(of, d, sum);
    for_constants<unit>([&](auto i) { trees.sum[i] = sum[i]; });
    if constexpr (Unit == 0) trees.to = s_ + n * R + r;
    if constexpr (units == 1) trees.template step<0, 0, unit>();
  }

  struct UnitRows {
    const T* const* key;   ///< of the vector's tokens; see Rows
    const T* const* near;  ///< of the vector to come
    const Acc* q;
    const Acc* blocks;  ///< block scales of the vector's tokens
  };

  template <int Unit, int Step, bool Part, bool Pairs>
  void add_beside(const UnitRows& of, Vec* sum, Trees<Pairs>& trees) {
    constexpr int next = Step + (Pairs ? 2 : 1);
    if constexpr (Step < unit) {
      add_products<Unit, Pairs, Part && next >= unit>(of, Step * width, sum);
      trees.template step<1 - Unit, Step, next>();
      add_beside<Unit, next, Part>(of, sum, trees);
    }
  }

  /// Part: there may be fewer dims than a vector has.
  template <int Unit, bool Pairs, bool Part>
  void add_products(const UnitRows& of, int d, Vec* sum) {
    constexpr int dims  = Pairs ? 2 * width : width;
    constexpr int first = unit_rows < vector_rows ? 0 : Unit * unit_tokens;
    // From the second-level cache, where it is: its latency would show.
    if constexpr (first > 0 || Unit == 0)
      if (d % line_dims == 0)
        for (int t = 0; t < unit_tokens; ++t) Machine::prefetch_near(of.near[first + t] + d / per_element);
    // The units of a vector share what is due with it.
    for (int t = vector_tokens * Unit / units; t < vector_tokens * (Unit + 1) / units; ++t)
      prefetch_dims<dims>(of.key[tile_tokens + t] + d / per_element, d);
    Vec x[unit_tokens];
    for_constants<unit_tokens>([&](auto t) {
      const T* const key = of.key[first + t] + d / per_element;
      if constexpr (Part && Pairs) {
        x[t] = Vec::load_bits_of_part(key, std::min(head_dim_ - d, dims));
      } else if constexpr (Part) {
        x[t] = Vec::load_part(key, std::min(head_dim_ - d, dims));
      } else if constexpr (Pairs) {
        x[t] = Vec::load(reinterpret_cast<const Acc*>(key));
      } else {
        x[t] = Vec::load(key);
      }
      if constexpr (block_dims > 0)
        x[t].multiply(Vec::all(of.blocks[(first + t) * blocks_stride(head_dim_) + d / block_dims]));
      x[t].keep();
    });
    for_constants<unit_rows>([&](auto r) {
      auto y = Vec::load(of.q + (d / dims * R + r) * width);
      y.keep();
      for_constants<unit_tokens>([&](auto t) {
        Vec& s = sum[t * unit_rows + r];
        if constexpr (Pairs) {
          s.add_pairs(x[t], y);
        } else {
          s.add_product(x[t], y);
        }
      });
    });
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
  void values_from(int d) {
    for (; d + B * width <= head_dim_v_; d += B * width) value_block_at<B, false, false>(d);
    if (d < head_dim_v_ && padded(head_dim_v_, width) == d + B * width) return value_block_at<B, true, false>(d);
    if constexpr (B > 1) values_from<B / 2>(d);
  }

  /// Part: the dims may not fill the last vector. Hiding: some rows do not see all tokens of the tile. Their
  /// probability is 0, but 0 times a value that is NaN would be NaN.
  template <int B, bool Part, bool Hiding>
  [[gnu::noinline, gnu::flatten]] void value_block_at(int d) {
    const T* const* row = rows_->value;
    const int stride = value_stride_, count = count_;
    const Acc* p = s_;
    Vec sum[R * B];
    for_constants<R * B>([&](auto i) { sum[i] = Vec::all(0); });
    for (int n = 0; n < count; ++n, ++row) {
      const int at = d / per_element;
      prefetch_dims<B * width>(row[tile_tokens] + at, d);
      Vec x[B];
      constexpr int whole = Part ? B - 1 : B;
      for_constants<whole>([&](auto b) { x[b] = Vec::load(*row + at + b * width / per_element); });
      if constexpr (Part)
        x[whole] =
            Vec::load_part(*row + at + whole * width / per_element, std::min(head_dim_v_ - d - whole * width, width));
      if constexpr (block_dims > 0) {
        const Acc* const scale = v_blocks_ + n * blocks_stride(head_dim_v_);
        for_constants<B>([&](auto b) { x[b].multiply(Vec::all(scale[(d + b * width) / block_dims])); });
      }
      if constexpr (Hiding) {
        for_constants<R>([&](auto r) {
          if ((hidden_[r] >> n & 1u) == 0)
            for_constants<B>([&](auto b) { sum[r * B + b].add_product_at(p + r, x[b]); });
        });
      } else {
        for_constants<R * B>([&](auto i) { sum[i].add_product_at(p + i / B, x[i % B]); });
      }
      p += R;
    }
    // A tile is summed apart and then added, so rounding grows with the number of tiles, not of tokens.
    for_constants<R * B>([&](auto i) {
      Acc* const o = o_ + i / B * stride + d + i % B * width;
      sum[i].add_product_at(correction_ + i / B, Vec::load(o));
      sum[i].store(o);
    });
  }

  const KernelArgsOf<T>& args_;
  int head_dim_, head_dim_v_, count_ = 0;
  int next_ = 0;          ///< tokens of the tile behind this one whose rows are known
  int heads_, head_ = 0;  ///< and which of them is selected
  bool pairs_ = false;    ///< queries are kept in bfloat16, by pairs of dims
  Acc scale_  = 1;
  int value_stride_;  ///< elements of a row of o_
  std::int64_t k_head_, v_head_;
  std::int64_t k_first_ = 0, v_first_ = 0;  ///< where the selected head's rows lie behind the first's
  int coming_token_ = 0, coming_head_ = 0;  ///< the row to prefetch next, of the tile behind this one
  Acc* base_;
  Acc* q_;                     ///< [R][key_stride], of the selected head; zeros beyond head_dim
  Acc* o_;                     ///< [R][value_stride], of the selected head
  Acc *max_, *sum_;            ///< [score_width], of the selected head
  Acc *k_scale_, *v_scale_;    ///< [tile_tokens], of the selected head; quantized types alone
  Acc* s_;                     ///< [tile_tokens][R]
  Acc* correction_;            ///< [score_width]
  Acc *k_blocks_, *v_blocks_;  ///< [tile_tokens][blocks_stride], of the selected head; with block scales alone
  Rows* rows_;
  std::int64_t *k_offset_, *v_offset_;      ///< [2][tile_tokens]: of this tile and of the next
  std::int64_t *k_scale_at_, *v_scale_at_;  ///< the same of scales; quantized types alone
  RowState<Acc>* states_;                   ///< [heads][R]
  // Behind the others: members that the loops read at small offsets keep their code short.
  int key_stride_;                ///< elements of a row of q_
  int head_elements_;             ///< of a head's part of the scratch memory
  std::uint32_t hidden_[R] = {};  ///< for each row a bit for each token, in their order in s_, that it does not see
};

}  // namespace pagoda::detail
