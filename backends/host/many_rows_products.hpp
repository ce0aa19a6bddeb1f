// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/types.hpp>

#include "backends/host/many_rows_tile.hpp"
#include "backends/host/simd_output.hpp"
#include "backends/host/simd_query.hpp"
#include "backends/host/simd_tile.hpp"
#include "backends/host/simd_vec.hpp"

#include <algorithm>
#include <cstdint>
#include <type_traits>

PAGODA_ISA_BEGIN
namespace pagoda::detail::PAGODA_ISA {

/// The code of ManyRowsTile in one instruction set. Both products are products of matrices: query rows times keys, and
/// probabilities times values. A block of the result, a few rows times two vectors, stays in registers: each element
/// of the left matrix is broadcast to a vector, and multiplied by two vectors of the right one, which the caller has
/// converted. So nothing is shuffled, and all query rows share the conversion.
class ManyRowsProducts final : public ManyRowsTile {
 public:
  using ManyRowsTile::ManyRowsTile;
  static constexpr int width = simd_bytes / int(sizeof(float));
  static constexpr int block = 2 * width;
  using Vec                  = SimdVec<float, width>;

  void load_query(int r, const QueryRow& row, float scale) override {
    float* const to = q_ + std::size_t(r) * key_stride_;
    load_query_row<Vec, width>(row, head_dim_, scale, [&](int d, const Vec& x) PAGODA_ISA_CODE { x.store(to + d); });
  }

  void multiply_keys(int count) override {
    count_ = count;
    plan_prefetches();
    for (int n = 0; n < count; n += block) {
      // One block of keys stays in the first-level cache for all rows.
      const float* const keys = keys_ + std::size_t(n) * key_stride_;
      each_block_of_rows<most_rows>([&]<int N>(std::integral_constant<int, N>, int r) PAGODA_ISA_CODE {
        multiply_block<N>(q_ + std::size_t(r) * key_stride_, key_stride_, keys, head_dim_, chain_dims,
                          s_ + (r * tile_tokens + n), tile_tokens, nullptr);
      });
    }
    // Scores behind the last token have no effect on the softmax.
    for (int r = 0; r < rows_ && count < tile_tokens; ++r)
      std::fill(s_ + (r * tile_tokens + count), s_ + (r * tile_tokens + padded(count, width)), -infinity);
  }

  void softmax(bool hides) override {
    careful_ = hides && !all_finite();
    if (careful_) note_hidden();
    for (int first = 0; first < rows_; first += width) softmax_of(first, std::min(first + width, rows_));
  }

  void multiply_values() override {
    if (careful_) return multiply_visible_values();
    for (int d = 0; d < head_dim_v_; d += block) {
      const float* const values = values_ + std::size_t(d) * tile_tokens;
      each_block_of_rows<most_rows>([&]<int N>(std::integral_constant<int, N>, int r) PAGODA_ISA_CODE {
        multiply_block<N>(s_ + r * tile_tokens, tile_tokens, values, count_, tile_tokens,
                          o_ + (std::size_t(r) * value_stride_ + d), value_stride_, correction_ + r);
      });
    }
  }

  void store_row(const StateArray<float>& from, int n, int r, float factor, const OutputRow& to) const override {
    PAGODA_ISA::store_row(from, n, r, factor, head_dim_v_, to);
  }

 private:
  ~ManyRowsProducts() = default;  // as that of SimdProducts

  /// Rows of a block. Its sums take three quarters of the registers.
  static constexpr int most_rows = simd_registers >= 32 ? 12 : 6;
  /// Products of a score that one register adds up, one after the other, before the score does. Rounding grows with
  /// both lengths.
  static constexpr int chain_dims = 32;

  /// Calls f(constant N, r) for blocks of N rows from row r on, and prefetches rows of the next tile.
  template <int N, class F>
  void each_block_of_rows(const F& f, int r = 0) {
    for (; r + N <= rows_; r += N) {
      f(std::integral_constant<int, N>{}, r);
      prefetch();
    }
    if constexpr (N > 2) each_block_of_rows<(N > 6 ? 6 : N > 4 ? 4 : 2)>(f, r);
  }

  /// c = c * factor + a b, for N rows and two vectors of columns. a has a row of `depth` elements for each row of c. No
  /// factor: c = a b. `chain` products at a time are summed apart, so that rounding does not grow with all of them.
  template <int N>
  [[gnu::noinline, gnu::flatten]] static void multiply_block(const float* a, int a_stride, const float* b, int depth,
                                                             int chain, float* c, int c_stride, const float* factor) {
    alignas(64) float total[2 * N * width];  // of the chains so far
    for (int begin = 0; begin < depth; begin += chain) {
      Vec sum[2 * N];
      for_constants<2 * N>([&](auto i) PAGODA_ISA_CODE { sum[i] = Vec::all(0); });
      const int end = std::min(begin + chain, depth);
#pragma GCC unroll 4
      for (int i = begin; i < end; ++i, b += block) {
        auto left = Vec::load(b), right = Vec::load(b + width);
        left.keep(), right.keep();
        for_constants<N>([&](auto r) PAGODA_ISA_CODE {
          const auto x = Vec::all(a[r * a_stride + i]);
          sum[2 * r].add_product(x, left);
          sum[2 * r + 1].add_product(x, right);
        });
      }
      if (begin > 0) for_constants<2 * N>([&](auto i) PAGODA_ISA_CODE { sum[i] += Vec::load(total + i * width); });
      if (end < depth) {
        for_constants<2 * N>([&](auto i) PAGODA_ISA_CODE { sum[i].store(total + i * width); });
        continue;
      }
      const auto at = [&](int i) PAGODA_ISA_CODE { return c + i / 2 * c_stride + i % 2 * width; };
      if (factor)
        for_constants<2 * N>([&](auto i) PAGODA_ISA_CODE { sum[i].add_product_at(factor + i / 2, Vec::load(at(i))); });
      for_constants<2 * N>([&](auto i) PAGODA_ISA_CODE { sum[i].store(at(i)); });
    }
  }

  /// One step of the softmax for rows first .. end, at most as many as a vector has lanes.
  void softmax_of(int first, int end) {
    const int vectors = (count_ + width - 1) / width;
    const auto old    = Vec::load(max_ + first);
    for (int r = first; r < end; ++r) max_[r] = std::max(max_[r], most_of(s_ + r * tile_tokens, vectors));
    const Vec base = Vec::load(max_ + first).finite_or_zero();  // no token seen yet: every exponent is -infinity
    Vec::exp2_difference(old, base).store(correction_ + first);
    for (int r = first; r < end; ++r) {
      float* const s       = s_ + r * tile_tokens;
      const auto base_of_r = Vec::all(max_[r] == -infinity ? 0.0f : max_[r]);
      auto total           = Vec::all(0);
      for (int i = 0; i < vectors; ++i) {
        const auto p = Vec::exp2_difference(Vec::load(s + i * width), base_of_r);
        p.store(s + i * width);
        total += p;
      }
      float* const sum = sum_ + r * max_width;
      total.add_product_at(correction_ + r, Vec::load(sum));
      total.store(sum);
    }
  }
  /// The maximum of some vectors, which ignores NaN.
  static float most_of(const float* s, int vectors) {
    auto most = Vec::all(-infinity), other = most;
    for (int i = 0; i + 1 < vectors; i += 2, s += 2 * width) {
      most.raise_to(Vec::load(s));
      other.raise_to(Vec::load(s + width));
    }
    if (vectors % 2 != 0) most.raise_to(Vec::load(s));
    most.raise_to(other);
    raise_to_turned<width / 2>(most);
    return most[0];
  }
  /// Sets every lane to the maximum of all.
  template <int H>
  static void raise_to_turned(Vec& most) {
    if constexpr (H > 0) {
      most.raise_to(most.template turned<H>());
      raise_to_turned<H / 2>(most);
    }
  }

  /// Whether no value of the tile is NaN or infinite.
  bool all_finite() const {
    auto any        = Vec::all(0);
    const auto zero = Vec::all(0);
    for (int d = 0; d < head_dim_v_; d += block) {
      const float* const values = values_ + std::size_t(d) * tile_tokens;
      for (int i = 0; i < count_ * block; i += width) any.add_product(zero, Vec::load(values + i));
    }
    float lanes[width];
    any.store(lanes);
    return std::all_of(lanes, lanes + width, [](float x) { return x == 0; });
  }

  /// Records hidden tokens before the softmax. A token that a row does not see has a score of -infinity.
  [[gnu::noinline]] void note_hidden() {
    for (int r = 0; r < rows_; ++r) {
      hidden_[r] = 0;
      for (int n = 0; n < count_; ++n)
        hidden_[r] |= static_cast<std::uint64_t>(s_[r * tile_tokens + n] == -infinity) << n;
    }
  }
  /// Skips hidden tokens: their probability is 0, but 0 times a NaN value is NaN.
  [[gnu::noinline]] void multiply_visible_values() {
    for (int r = 0; r < rows_; ++r)
      for (int d = 0; d < head_dim_v_; d += width) {
        const float* const values = values_ + (std::size_t(d / block * block) * tile_tokens + d % block);
        float* const o            = o_ + (std::size_t(r) * value_stride_ + d);
        auto sum                  = Vec::all(0);
        for (int n = 0; n < count_; ++n)
          if ((hidden_[r] >> n & 1u) == 0)
            sum.add_product_at(s_ + (r * tile_tokens + n), Vec::load(values + n * block));
        sum.add_product_at(correction_ + r, Vec::load(o));
        sum.store(o);
      }
  }

  /// Chooses how many lines each block of rows prefetches.
  void plan_prefetches() {
    std::int64_t lines = 0;
    for (int i = 0; i < num_coming_; ++i) lines += (rows_to_prefetch_[i].bytes + 63) / 64;
    const int blocks = (count_ + block - 1) / block + (head_dim_v_ + block - 1) / block;
    const int steps  = blocks * ((rows_ + most_rows - 1) / most_rows);
    lines_per_step_  = static_cast<int>((lines + steps - 1) / std::max(steps, 1));
  }
  void prefetch() {
    for (int i = 0; i < lines_per_step_ && coming_ < num_coming_; ++i) {
      const RowToPrefetch& row = rows_to_prefetch_[coming_];
      prefetch_line(static_cast<const char*>(row.at) + coming_byte_);
      coming_byte_ += 64;
      if (coming_byte_ >= row.bytes) ++coming_, coming_byte_ = 0;
    }
  }
};

}  // namespace pagoda::detail::PAGODA_ISA
PAGODA_ISA_END
