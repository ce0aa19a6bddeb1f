// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/hip/mfma.hpp"
#include "src/base/unroll.hpp"
#include "src/kernel/online_softmax.hpp"

#include <cstdint>
#include <type_traits>

namespace pagoda::detail::hip {

/// Tiles of 16 TokenBlocks tokens and 16 RowTiles query rows, multiplied by a wave of CDNA with matrix instructions.
/// Plain HIP; MfmaFragment connects it to the generic kernel.
///
///  - In both products operand a (16 rows) comes from the cache, and the query rows are the columns of operand b. The
///    layout of the scores is the layout of operand b in the second product, so probabilities stay in their lanes.
///  - A lane loads 16 bytes of a row at once and nothing passes through LDS. Keys: 8 dims of token `column` are
///    elements of two products, and queries are loaded in the same order. Values: 8 dims of each of 4 tokens are
///    elements of 8 products; product j yields every 8th dim, j and on. (With 64 dims a lane loads 4 dims of a value.)
///  - The running maximum is raised only when a score exceeds it by more than rescale_threshold. Until then
///    probabilities are at most 2^8, and nothing is rescaled.
///
/// `group` is lane / 16 and `column` is lane % 16. The lane has scores and outputs of query rows 16 n + column. Its
/// scores of block b are those of tokens 16 b + 4 group + i.
template <MfmaType Type, int DimTile, int RowTiles, int TokenBlocks>
class MfmaTile {
 public:
  static constexpr int tokens = 16 * TokenBlocks, rows = 16 * RowTiles;
  static constexpr int key_loads   = DimTile / 32;                         ///< loads of a lane for a row of keys
  static constexpr int value_dims  = DimTile / 16 < 8 ? DimTile / 16 : 8;  ///< dims of a load of values
  static constexpr int value_loads = DimTile / 16 / value_dims;            ///< loads of a lane for a row of values
  static_assert(DimTile % 64 == 0);
  using ValueWords = std::conditional_t<value_dims == 8, Words4, Words2>;

  /// Operand b of a tile of queries: 16-byte chunks `group`, group + 4 and so on of row 16 n + column.
  struct Queries {
    Words4 at[RowTiles][key_loads];
  };

  PAGODA_HIP_FUNCTION explicit MfmaTile(int lane) : group_(lane >> 4), column_(lane & 15) {
    PAGODA_UNROLL_ALL
    for (int n = 0; n < RowTiles; ++n) base_[n] = initial_max, sum_[n] = 0;
    PAGODA_UNROLL_ALL
    for (auto& row_tile : out_)
      for (Float4& out : row_tile) out = 0;
  }

  PAGODA_HIP_FUNCTION int group() const { return group_; }
  PAGODA_HIP_FUNCTION int column() const { return column_; }
  /// The chunk of 16 bytes of a row of keys, or of queries, that the lane loads in its load s.
  PAGODA_HIP_FUNCTION int key_chunk(int s) const { return group_ + 4 * s; }
  /// The first dim of a row of values that the lane loads in its load h, and of the outputs of group * 4 + i.
  PAGODA_HIP_FUNCTION static constexpr int value_dim(int h, int sixteenth) {
    return 16 * value_dims * h + value_dims * sixteenth;
  }
  /// Token in the tile of the lane's score i of block b, and of its value row i.
  PAGODA_HIP_FUNCTION int token(int b, int i) const { return 16 * b + 4 * group_ + i; }

  /// Loads keys. at(b, s): address of the lane's chunk s of token 16 b + column.
  template <class At>
  PAGODA_HIP_FUNCTION void load_keys(const At& at) {
    PAGODA_UNROLL_ALL
    for (int b = 0; b < TokenBlocks; ++b)
      for (int s = 0; s < key_loads; ++s) keys_[b][s] = load_global<Words4>(at(b, s));
  }
  /// Loads values. at(b, i, h): address of the lane's load h of token(b, i).
  template <class At>
  PAGODA_HIP_FUNCTION void load_values(const At& at) {
    PAGODA_UNROLL_ALL
    for (int b = 0; b < TokenBlocks; ++b)
      for (int i = 0; i < 4; ++i)
        for (int h = 0; h < value_loads; ++h) values_[b][i][h] = load_global<ValueWords>(at(b, i, h));
  }
  /// Sets keys from chunk `end` on to zero.
  PAGODA_HIP_FUNCTION void clear_keys(int end) {
    PAGODA_UNROLL_ALL
    for (int b = 0; b < TokenBlocks; ++b)
      for (int s = 0; s < key_loads; ++s)
        for (int w = 0; w < 4; ++w) keys_[b][s][w] = key_chunk(s) < end ? keys_[b][s][w] : 0;
  }

  /// Scores = keys x queries.
  PAGODA_HIP_FUNCTION void multiply_keys(const Queries& q) {
    PAGODA_UNROLL_ALL
    for (int b = 0; b < TokenBlocks; ++b)
      for (int n = 0; n < RowTiles; ++n) scores_[b][n] = 0;
    add_key_products(q);
  }
  PAGODA_HIP_FUNCTION void add_key_products(const Queries& q) {
    PAGODA_UNROLL_ALL
    for (int b = 0; b < TokenBlocks; ++b)
      for (int s = 0; s < key_loads; ++s)
        for (int n = 0; n < RowTiles; ++n) {
          scores_[b][n] = mfma<Type>(keys_[b][s].lo, q.at[n][s].lo, scores_[b][n]);
          scores_[b][n] = mfma<Type>(keys_[b][s].hi, q.at[n][s].hi, scores_[b][n]);
        }
  }
  /// Multiplies scores by `scale`. Scores of tokens from `count` on become -infinity.
  PAGODA_HIP_FUNCTION void finish_scores(float scale, int count) {
    PAGODA_UNROLL_ALL
    for (int b = 0; b < TokenBlocks; ++b)
      for (int n = 0; n < RowTiles; ++n)
        for (int i = 0; i < 4; ++i)
          scores_[b][n][i] = token(b, i) < count ? scores_[b][n][i] * scale : -__builtin_inff();
  }
  /// Calls change(n, token, score) for the lane's scores of the first `count` tokens, in rows 16 n + column.
  template <class Change>
  PAGODA_HIP_FUNCTION void for_each_score(int count, const Change& change) {
    PAGODA_UNROLL_ALL
    for (int b = 0; b < TokenBlocks; ++b)
      for (int n = 0; n < RowTiles; ++n)
        for (int i = 0; i < 4; ++i) {
          float x = scores_[b][n][i];
          if (token(b, i) < count) change(n, token(b, i), x);
          scores_[b][n][i] = x;
        }
  }

  /// Scores become probabilities relative to the running maximum. hides: a score of -infinity marks a token that the
  /// row does not see.
  PAGODA_HIP_FUNCTION void softmax(bool hides) {
    float most[RowTiles];
    bool rises = false;
    PAGODA_UNROLL_ALL
    for (int n = 0; n < RowTiles; ++n) {
      most[n] = scores_[0][n][0];
      PAGODA_UNROLL_ALL
      for (int b = 0; b < TokenBlocks; ++b)
        for (int i = 0; i < 4; ++i) most[n] = __builtin_fmaxf(most[n], scores_[b][n][i]);
      rises |= most[n] > base_[n] + rescale_threshold;
    }
    if (any_lane(rises)) raise_bases(most);
    if (hides) {
      exponentiate(std::true_type{});
    } else {
      exponentiate(std::false_type{});
    }
  }

  /// Output += values x probabilities.
  PAGODA_HIP_FUNCTION void multiply_values() {
    for_each_value([&](int b, int j, Words2 a) {
      PAGODA_UNROLL_ALL
      for (int n = 0; n < RowTiles; ++n) out_[n][j] = mfma<Type>(a, weights_[b][n], out_[n][j]);
    });
  }
  /// The second product for tiles with values that are not finite and tokens that a row does not see: one product for
  /// each row, with 0 in place of the values that it does not see. Slow and rarely needed.
  PAGODA_HIP_FUNCTION void multiply_visible_values() {
    PAGODA_UNROLL_ALL
    for (int n = 0; n < RowTiles; ++n) {
      PAGODA_UNROLL(1)
      for (int r = 0; r < 16; ++r) {
        Words2 seen[TokenBlocks];
        PAGODA_UNROLL_ALL
        for (int b = 0; b < TokenBlocks; ++b)
          for (int w = 0; w < 2; ++w) seen[b][w] = visible_halves(from_lane(weights_[b][n][w], 16 * group_ + r));
        for_each_value([&](int b, int j, Words2 a) {
          const Float4 sum = mfma<Type>(a & seen[b], weights_[b][n], Float4{});
          if (column_ == r) out_[n][j] += sum;
        });
      }
    }
  }
  /// Whether no value of the tile is infinite or NaN.
  PAGODA_HIP_FUNCTION bool values_are_finite() const {
    // An exponent of ones overflows into the upper bit of its half.
    constexpr std::uint32_t exponent = Type == MfmaType::fp16 ? 0x7c007c00u : 0x7f807f80u;
    constexpr std::uint32_t one      = Type == MfmaType::fp16 ? 0x04000400u : 0x00800080u;
    std::uint32_t ones               = 0;
    PAGODA_UNROLL_ALL
    for (int b = 0; b < TokenBlocks; ++b)
      for (int i = 0; i < 4; ++i)
        for (int h = 0; h < value_loads; ++h)
          for (int w = 0; w < value_dims / 2; ++w) ones |= (values_[b][i][h][w] & exponent) + one;
    return !any_lane((ones & 0x80008000u) != 0);
  }

  /// Adds up the sums of the lanes of each row, once after the last tile.
  PAGODA_HIP_FUNCTION void sum_lanes() {
    PAGODA_UNROLL_ALL
    for (float& sum : sum_)
      for (int d = 16; d < 64; d *= 2) sum += from_lane(sum, (16 * group_ + column_) ^ d);
  }
  /// Maximum (base 2) and sum of row 16 n + column. If the base was never raised, the row has seen no token.
  PAGODA_HIP_FUNCTION float most(int n) const { return sum_[n] == 0.0f ? -__builtin_inff() : base_[n]; }
  PAGODA_HIP_FUNCTION float sum(int n) const { return sum_[n]; }
  /// Output of row 16 n + column in dim value_dim(h, 4 group + i) + j.
  PAGODA_HIP_FUNCTION float output(int n, int h, int i, int j) const { return out_[n][value_dims * h + j][i]; }

 private:
  PAGODA_HIP_FUNCTION void raise_bases(float (&most)[RowTiles]) {
    PAGODA_UNROLL_ALL
    for (int n = 0; n < RowTiles; ++n) {
      PAGODA_UNROLL_ALL
      for (int d = 16; d < 64; d *= 2)
        most[n] = __builtin_fmaxf(most[n], from_lane(most[n], (16 * group_ + column_) ^ d));
      const float base = __builtin_fmaxf(base_[n], most[n]), kept = exp2(base_[n] - base);
      base_[n] = base;
      sum_[n] *= kept;
      PAGODA_UNROLL_ALL
      for (Float4& out : out_[n]) out *= kept;
    }
  }
  template <class Hiding>
  PAGODA_HIP_FUNCTION void exponentiate(Hiding) {
    PAGODA_UNROLL_ALL
    for (int b = 0; b < TokenBlocks; ++b)
      for (int n = 0; n < RowTiles; ++n) {
        float p[4];
        PAGODA_UNROLL_ALL
        for (int i = 0; i < 4; ++i) {
          const float x = scores_[b][n][i];
          p[i]          = exp2(x - base_[n]);
          sum_[n] += p[i];
          if (Hiding::value && x == -__builtin_inff()) p[i] = hidden_probability;
        }
        weights_[b][n] = Words2{pack<Type>(p[0], p[1]), pack<Type>(p[2], p[3])};
      }
  }
  /// Calls f(b, j, a) for operand a of each output j and block b: dim j of the lane's 4 tokens.
  template <class F>
  PAGODA_HIP_FUNCTION void for_each_value(const F& f) const {
    PAGODA_UNROLL_ALL
    for (int b = 0; b < TokenBlocks; ++b)
      for (int h = 0; h < value_loads; ++h)
        for (int w = 0; w < value_dims / 2; ++w) {
          const auto word = [&](int i) { return values_[b][i][h][w]; };
          const int j     = value_dims * h + 2 * w;
          f(b, j, Words2{pair_halves<0>(word(0), word(1)), pair_halves<0>(word(2), word(3))});
          f(b, j + 1, Words2{pair_halves<1>(word(0), word(1)), pair_halves<1>(word(2), word(3))});
        }
  }
  /// A mask of 16-bit halves: all bits where that of a word of probabilities is not hidden_probability.
  PAGODA_HIP_FUNCTION static std::uint32_t visible_halves(std::uint32_t p) {
    return ((p & 0xffffu) != 0x8000u ? 0xffffu : 0u) | (p >> 16 != 0x8000u ? 0xffff0000u : 0u);
  }

  int group_, column_;
  Words4 keys_[TokenBlocks][key_loads];
  ValueWords values_[TokenBlocks][4][value_loads];
  Float4 scores_[TokenBlocks][RowTiles];
  Words2 weights_[TokenBlocks][RowTiles];  ///< probabilities, as operand b
  float base_[RowTiles], sum_[RowTiles];   ///< running maximum, and the sum of the lane's probabilities
  Float4 out_[RowTiles][DimTile / 16];     ///< output j of product j, see output()
};

}  // namespace pagoda::detail::hip
