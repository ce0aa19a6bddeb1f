// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/row_formats.hpp>
#include <pagoda/types.hpp>

#include "backends/host/simd_byte_keys.hpp"
#include "backends/host/simd_score_trees.hpp"
#include "backends/host/simd_vec.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

PAGODA_ISA_BEGIN
namespace pagoda::detail::PAGODA_ISA {

/// The code of SimdFragment in one instruction set. If the dims do not fill the last vector, it reads only those that
/// exist. Each vector of keys or values is loaded and converted once for all R rows:
///   - Scores: the kernel computes as many (token, row) products at once as a vector has lanes, each in a register of
///     its own. A transposing tree adds them up into one vector of scores, in memory order. With enough registers the
///     products are computed in two halves, and the tree of one half is interleaved with the products of the other:
///     products alone saturate the multiply-add units, and a tree alone leaves them idle.
///   - Values: the outputs of all rows for a few vectors of dims stay in registers for all tokens of a tile.
template <class T, int R>
class SimdProducts final : public SimdByteKeys<T, R> {
  using Base = SimdByteKeys<T, R>;
  using Base::args_;
  using Base::blocks_stride;
  using Base::by_bytes;
  using Base::convert_blocks;
  using Base::correction_;
  using Base::count_;
  using Base::factor_;
  using Base::head_dim_;
  using Base::head_dim_v_;
  using Base::head_elements_;
  using Base::heads_;
  using Base::hidden_;
  using Base::infinity;
  using Base::k_blocks_;
  using Base::k_scale_;
  using Base::k_scale_at_;
  using Base::line_dims;
  using Base::line_up;
  using Base::max_;
  using Base::o_;
  using Base::paired;
  using Base::pairs_;
  using Base::per_element;
  using Base::q_;
  using Base::rows_;
  using Base::s_;
  using Base::score_width;
  using Base::states_;
  using Base::sum_;
  using Base::turn;
  using Base::unit;
  using Base::unit_rows;
  using Base::unit_tokens;
  using Base::units;
  using Base::v_blocks_;
  using Base::v_scale_;
  using Base::v_scale_at_;
  using Base::value_block;
  using Base::value_stride_;
  using Base::vector_rows;
  using Base::vector_tokens;
  using Base::vectors;
  using Base::width;
  using typename Base::ScoreVec;
  using typename Base::Vec;

 public:
  using Base::Base;
  using Base::block_dims;
  using Base::scaled;
  using Base::select;
  using Base::tile_tokens;
  using typename Base::Acc;

  void multiply_keys() override {
    line_up();
    if constexpr (block_dims > 0) {
      convert_blocks(args_.k_blocks, k_scale_at_, head_dim_, k_blocks_);
      convert_blocks(args_.v_blocks, v_scale_at_, head_dim_v_, v_blocks_);
    }
    bool scored = false;
    if constexpr (by_bytes) scored = Base::score_as_bytes();
    if (!scored) score_tile();
    if constexpr (scaled)
      if (args_.k_scale.per_token()) weigh(k_scale_);
    for (int i = count_ * R; i < vectors() * score_width; ++i) s_[i] = -infinity;
  }

  /// The same as in PortableFragment, with vectors throughout. Each lane keeps a running maximum and sum. The lanes
  /// of a row hold the same maximum; their sums are added at the end.
  void softmax(bool hides) override {
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

  void multiply_values(bool hides) override {
    if constexpr (scaled)
      if (args_.v_scale.per_token()) weigh(v_scale_);  // after the softmax has summed the probabilities
    if constexpr (by_bytes)
      if (!hides && Base::add_values_as_bytes()) return;
    if (!hides) return values_from<value_block>(0);
    for (int d = 0; d < head_dim_v_; d += width) value_block_at<1, true, true>(d);
  }

  /// States of all heads.
  StateArray<Acc> finish() override {
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
  ~SimdProducts() = default;  // a tile lies in memory of its fragment and needs no destruction

  /// Records hidden tokens before the softmax. A token that a row does not see has a score of -infinity.
  [[gnu::noinline]] void note_hidden() {
    for (int r = 0; r < R; ++r) {
      hidden_[r] = 0;
      for (int n = 0; n < count_; ++n) hidden_[r] |= static_cast<std::uint32_t>(s_[n * R + r] == -infinity) << n;
    }
  }

  /// Multiplies the tile's scores or probabilities by the scales of their tokens. Scores behind the tile's tokens
  /// are not used.
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

  void score_tile() {
    if constexpr (paired)
      if (pairs_) return head_dim_ % (2 * width) == 0 ? score_tile<true, false>() : score_tile<true, true>();
    if constexpr (has_row_format_v<T>) {
      static_assert(RowPlaces<T>::block_dims % width == 0, "a vector has dims of one scale alone, and fills rows");
      score_tile<false, false>();
    } else {
      head_dim_ % width == 0 ? score_tile<false, false>() : score_tile<false, true>();
    }
  }

  template <bool Pairs>
  using Trees = ScoreTrees<Acc, width, units, unit_rows(Pairs), vector_rows, Pairs>;

  /// Part: the dims do not fill the last vector.
  template <bool Pairs, bool Part>
  [[gnu::noinline, gnu::flatten]] void score_tile() {
    Trees<Pairs> trees;
    trees.scale = Vec::all(*factor_), trees.first = Vec::all(0), trees.to = s_;
    for_constants<unit>([&](auto i) PAGODA_ISA_CODE { trees.sum[i] = Vec::all(0); });
    for (int n = 0; n < count_; n += vector_tokens)
      for (int r = 0; r < R; r += vector_rows) {
        score_unit<0, Part>(n, r, trees);
        if constexpr (units > 1) score_unit<1, Part>(n, r, trees);
      }
    if constexpr (units > 1) trees.template step<units - 1, 0, unit>();
  }

  /// Computes the products of unit number Unit, for the vector of scores of tokens from n on and rows from r on.
  template <int Unit, bool Part, bool Pairs>
  void score_unit(int n, int r, Trees<Pairs>& trees) {
    constexpr int dims        = Pairs ? 2 * width : width;
    const T* const* const key = rows_->key + n;
    const UnitRows of{key, key + (n + vector_tokens < count_ ? vector_tokens : 0),
                      q_ + (r + (unit_rows(Pairs) < vector_rows ? Unit * unit_rows(Pairs) : 0)) * width,
                      k_blocks_ + n * blocks_stride(head_dim_)};
    Vec sum[unit];
    for_constants<unit>([&](auto i) PAGODA_ISA_CODE { sum[i] = Vec::all(0); });
    constexpr int before = units > 1 ? 1 - Unit : 0;  // unit whose tree is interleaved
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
    for_constants<unit>([&](auto i) PAGODA_ISA_CODE { trees.sum[i] = sum[i]; });
    if constexpr (Unit == 0) trees.to = s_ + n * R + r;
    if constexpr (units == 1) trees.template step<0, 0, unit>();
  }

  struct UnitRows {
    const T* const* key;   ///< rows of the vector's tokens; see Rows
    const T* const* near;  ///< rows of the next vector's tokens
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
    constexpr int dims     = Pairs ? 2 * width : width;
    constexpr int own_rows = unit_rows(Pairs), own_tokens = unit_tokens(Pairs);
    constexpr int first = own_rows < vector_rows ? 0 : Unit * own_tokens;
    // Prefetches into the first-level cache: otherwise the latency of the second level would be exposed.
    [[maybe_unused]] int line = 0;
    if constexpr (has_row_format_v<T>) line = Base::line_beside(d);
    if constexpr (first > 0 || Unit == 0) {
      if constexpr (has_row_format_v<T>) {
        for (int t = 0; t < own_tokens && line >= 0; ++t) prefetch_near(of.near[first + t] + line);
      } else {
        if (d % line_dims == 0)
          for (int t = 0; t < own_tokens; ++t) prefetch_near(of.near[first + t] + d / per_element);
      }
    }
    // Each unit of a vector issues its part of the vector's prefetches.
    for (int t = vector_tokens * Unit / units; t < vector_tokens * (Unit + 1) / units; ++t) {
      if constexpr (has_row_format_v<T>) {
        if (line >= 0) prefetch_line(of.key[tile_tokens + t] + line);
      } else {
        Base::template prefetch_dims<dims>(of.key[tile_tokens + t] + d / per_element, d);
      }
    }
    Vec x[own_tokens];
    for_constants<own_tokens>([&](auto t) PAGODA_ISA_CODE {
      [[maybe_unused]] const T* const key = of.key[first + t] + d / per_element;
      if constexpr (has_row_format_v<T>) {
        x[t] = Vec::load_from_row(of.key[first + t], d);
      } else if constexpr (Part && Pairs) {
        x[t] = Vec::load_pairs_of_part(key, std::min(head_dim_ - d, dims));
      } else if constexpr (Part) {
        x[t] = Vec::load_part(key, std::min(head_dim_ - d, dims));
      } else if constexpr (Pairs) {
        x[t] = Vec::load_pairs(key);
      } else {
        x[t] = Vec::load(key);
      }
      if constexpr (block_dims > 0)
        x[t].multiply(Vec::all(of.blocks[(first + t) * blocks_stride(head_dim_) + d / block_dims]));
      x[t].keep();
    });
    for_constants<own_rows>([&](auto r) PAGODA_ISA_CODE {
      auto y = Vec::load(of.q + (d / dims * R + r) * width);
      y.keep();
      for_constants<own_tokens>([&](auto t) PAGODA_ISA_CODE {
        Vec& s = sum[t * own_rows + r];
        if constexpr (Pairs) {
          s.add_pairs(x[t], y);
        } else {
          s.add_product(x[t], y);
        }
      });
    });
  }

  /// Sets every lane of `most` to the maximum over the lanes of its row.
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

  /// Part: the dims may not fill the last vector. Hiding: some rows do not see all tokens of the tile. Hidden
  /// tokens are skipped: their probability is 0, but 0 times a NaN value is NaN.
  template <int B, bool Part, bool Hiding>
  [[gnu::noinline, gnu::flatten]] void value_block_at(int d) {
    const T* const* row = rows_->value;
    const int stride = value_stride_, count = count_;
    const Acc* p = s_;
    Vec sum[R * B];
    for_constants<R * B>([&](auto i) PAGODA_ISA_CODE { sum[i] = Vec::all(0); });
    for (int n = 0; n < count; ++n, ++row) {
      [[maybe_unused]] const int at = d / per_element;
      Vec x[B];
      // Rows with a format of their own are whole vectors, and multiply_keys has prefetched them.
      constexpr bool part = Part && !has_row_format_v<T>;
      constexpr int whole = part ? B - 1 : B;
      if constexpr (has_row_format_v<T>) {
        for_constants<B>([&](auto b) PAGODA_ISA_CODE { x[b] = Vec::load_from_row(*row, d + b * width); });
      } else {
        Base::template prefetch_dims<B * width>(row[tile_tokens] + at, d);
        for_constants<whole>([&](auto b) PAGODA_ISA_CODE { x[b] = Vec::load(*row + at + b * width / per_element); });
      }
      if constexpr (part)
        x[whole] =
            Vec::load_part(*row + at + whole * width / per_element, std::min(head_dim_v_ - d - whole * width, width));
      if constexpr (block_dims > 0) {
        const Acc* const scale = v_blocks_ + n * blocks_stride(head_dim_v_);
        for_constants<B>([&](auto b) PAGODA_ISA_CODE { x[b].multiply(Vec::all(scale[(d + b * width) / block_dims])); });
      }
      if constexpr (Hiding) {
        for_constants<R>([&](auto r) PAGODA_ISA_CODE {
          if ((hidden_[r] >> n & 1u) == 0)
            for_constants<B>([&](auto b) PAGODA_ISA_CODE { sum[r * B + b].add_product_at(p + r, x[b]); });
        });
      } else {
        for_constants<R>([&](auto r) PAGODA_ISA_CODE {
          if constexpr (B > 1 && simd_registers >= 32) {
            auto y = Vec::all(p[r]);  // one load for all vectors of dims, as loads bound this loop
            y.keep();
            for_constants<B>([&](auto b) PAGODA_ISA_CODE { sum[r * B + b].add_product(y, x[b]); });
          } else {
            for_constants<B>([&](auto b) PAGODA_ISA_CODE { sum[r * B + b].add_product_at(p + r, x[b]); });
          }
        });
      }
      p += R;
    }
    // A tile is summed separately and then added, so rounding grows with the number of tiles, not of tokens.
    for_constants<R * B>([&](auto i) PAGODA_ISA_CODE {
      Acc* const o = o_ + i / B * stride + d + i % B * width;
      sum[i].add_product_at(correction_ + i / B, Vec::load(o));
      sum[i].store(o);
    });
  }
};

}  // namespace pagoda::detail::PAGODA_ISA
PAGODA_ISA_END
