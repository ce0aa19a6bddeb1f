// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/hip/matrix.hpp"
#include "src/base/unroll.hpp"
#include "src/kernel/online_softmax.hpp"

#include <cstdint>
#include <type_traits>

namespace pagoda::detail::hip {

/// Tiles of 16 TokenBlocks tokens and 16 RowTiles query rows, multiplied by a wave with matrix instructions. Plain HIP;
/// MatrixFragment connects it to the generic kernel.
///
///  - In both products operand a (16 rows) comes from the cache, and the query rows are the columns of operand b.
///    On CDNA the layout of the scores is the layout of operand b in the second product, so probabilities stay in
///    their lanes. On RDNA the two groups of lanes exchange them.
///  - A lane loads up to 16 bytes of a row at once and nothing passes through LDS. Keys: the dims of token
///    token_of_row(column) are elements of several products, and queries are loaded in the same order. Values: the dims
///    of each of `operand_tokens` tokens are elements of as many products as there are dims in a load.
///  - The running maximum is raised only when a score exceeds it by more than rescale_threshold. Until then
///    probabilities are at most 2^8, and nothing is rescaled.
///  - If tokens have scales, the weights of value rows are probabilities times scales, and the running maximum bounds
///    these weights.
///
/// Arch: Cdna or Rdna3. Storage: matrix_storage.hpp. `group` is lane / 16 and `column` is lane % 16. The lane has
/// scores and outputs of query rows 16 n + column. Its scores of block b are those of tokens token(b, i).
template <class Arch, class Storage, int KeyDims, int ValueDims, int RowTiles, int TokenBlocks>
class MatrixTile {
  static constexpr auto type        = Storage::type;
  static constexpr int per_half     = Storage::per_half;
  static constexpr int operand_half = 16 / Arch::operand_groups;  ///< elements of an operand, in a lane
  static constexpr int words        = operand_half / 2;           ///< words of an operand
  using Operand                     = typename Arch::Operand;
  using Sums                        = typename Arch::Sums;

 public:
  static constexpr int tokens = 16 * TokenBlocks, rows = 16 * RowTiles;
  static constexpr int sums           = 256 / Arch::lanes;                            ///< of a product, in a lane
  static constexpr int chunk_dims     = 128 / Storage::bits;                          ///< dims in 16 bytes
  static constexpr int key_loads      = KeyDims / chunk_dims / Arch::operand_groups;  ///< of a lane for a row of keys
  static constexpr int value_dims     = ValueDims / 16 < chunk_dims ? ValueDims / 16 : chunk_dims;  ///< of a load
  static constexpr int value_loads    = ValueDims / 16 / value_dims;  ///< loads of a lane for a row of values
  static constexpr int operand_tokens = operand_half;                 ///< tokens of a block whose values a lane loads
  static constexpr int query_loads    = key_loads * per_half;         ///< loads of a lane for a query row
  static constexpr int value_words    = value_dims * Storage::bits / 32;
  static_assert(key_loads * chunk_dims * Arch::operand_groups == KeyDims && value_words > 0);
  using ValueWords = Words<value_words>;

  /// Operand b of a tile of queries, in the order of the expanded keys. For each chunk of keys, per_half loads.
  struct Queries {
    Words4 at[RowTiles][query_loads];
  };

  PAGODA_HIP_FUNCTION explicit MatrixTile(int lane) : group_(lane >> 4), column_(lane & 15) {
    PAGODA_UNROLL_ALL
    for (int n = 0; n < RowTiles; ++n) base_[n] = initial_max, sum_[n] = 0;
    PAGODA_UNROLL_ALL
    for (auto& row_tile : out_)
      for (Sums& out : row_tile) out = 0;
  }

  PAGODA_HIP_FUNCTION int group() const { return group_; }
  PAGODA_HIP_FUNCTION int column() const { return column_; }
  /// The chunk of 16 bytes of a row of keys that the lane loads in its load s.
  PAGODA_HIP_FUNCTION int key_chunk(int s) const { return operand_group() + Arch::operand_groups * s; }
  /// The token of a block whose key the lane loads.
  PAGODA_HIP_FUNCTION int key_token() const { return Arch::token_of_row(column_); }
  /// The first dim of a query that the lane loads in its load s.
  PAGODA_HIP_FUNCTION int query_dim(int s) const { return chunk_dims * key_chunk(s / per_half) + 8 * (s % per_half); }
  /// The first dim of a row of values that column `sixteenth` loads in its load h, and of the output in that row of
  /// sums.
  PAGODA_HIP_FUNCTION static constexpr int value_dim(int h, int sixteenth) {
    return 16 * value_dims * h + value_dims * sixteenth;
  }
  /// Row of the lane's sum i of a product.
  PAGODA_HIP_FUNCTION int sum_row(int i) const { return Arch::sum_row(i, group_); }
  /// The first token of a block whose values the lane loads.
  PAGODA_HIP_FUNCTION int value_token() const { return operand_tokens * operand_group(); }
  /// Token in the tile of the lane's score i of block b.
  PAGODA_HIP_FUNCTION int token(int b, int i) const { return 16 * b + sums * group_ + i; }

  /// Loads keys. at(b, s): address of the lane's chunk s of token 16 b + key_token().
  template <class At>
  PAGODA_HIP_FUNCTION void load_keys(const At& at) {
    PAGODA_UNROLL_ALL
    for (int b = 0; b < TokenBlocks; ++b) {
      PAGODA_UNROLL_ALL
      for (int s = 0; s < key_loads; ++s) keys_[b][s] = load_global<Words4>(at(b, s));
    }
  }
  /// Loads values. at(b, i, h): address of the lane's load h of token 16 b + value_token() + i.
  template <class At>
  PAGODA_HIP_FUNCTION void load_values(const At& at) {
    PAGODA_UNROLL_ALL
    for (int b = 0; b < TokenBlocks; ++b) {
      PAGODA_UNROLL_ALL
      for (int i = 0; i < operand_tokens; ++i) {
        PAGODA_UNROLL_ALL
        for (int h = 0; h < value_loads; ++h) values_[b][i][h] = load_global<ValueWords>(at(b, i, h));
      }
    }
  }
  /// Sets keys from chunk `end` on to zero.
  PAGODA_HIP_FUNCTION void clear_keys(int end) {
    PAGODA_UNROLL_ALL
    for (int b = 0; b < TokenBlocks; ++b) {
      PAGODA_UNROLL_ALL
      for (int s = 0; s < key_loads; ++s)
        for (int w = 0; w < 4; ++w) keys_[b][s][w] = key_chunk(s) < end ? keys_[b][s][w] : 0;
    }
  }
  /// Brings queries, loaded in the order of their dims, in the order of the expanded keys.
  PAGODA_HIP_FUNCTION static void order_queries(Queries& q) {
    if constexpr (per_half > 1) {
      PAGODA_UNROLL_ALL
      for (auto& row : q.at)
        for (int s = 0; s < key_loads; ++s) {
          std::uint32_t from[4 * per_half];
          PAGODA_UNROLL_ALL
          for (int w = 0; w < 4 * per_half; ++w) from[w] = row[per_half * s + w / 4][w % 4];
          PAGODA_UNROLL_ALL
          for (int w = 0; w < 4 * per_half;
               ++w) {  // element w % per_half of the halves of the word w / per_half of keys
            const int low = w - w % per_half + w % per_half / 2, high = low + per_half / 2;
            row[per_half * s + w / 4][w % 4] =
                w % 2 == 0 ? pair_halves<0>(from[low], from[high]) : pair_halves<1>(from[low], from[high]);
          }
        }
    }
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
    for (int b = 0; b < TokenBlocks; ++b) {
      PAGODA_UNROLL_ALL
      for (int p = 0; p < KeyDims / 16; ++p) {
        const Operand a = key_operand(b, p);
        PAGODA_UNROLL_ALL
        for (int n = 0; n < RowTiles; ++n) {
          Operand of_row;
          PAGODA_UNROLL_ALL
          for (int k = 0; k < words; ++k) of_row[k] = q.at[n][(words * p + k) / 4][(words * p + k) % 4];
          scores_[b][n] = Arch::template multiply<type>(a, of_row, scores_[b][n]);
        }
      }
    }
  }
  /// Multiplies scores by `scale`. Scores of tokens from `count` on become -infinity.
  PAGODA_HIP_FUNCTION void finish_scores(float scale, int count) {
    PAGODA_UNROLL_ALL
    for (int b = 0; b < TokenBlocks; ++b)
      for (int n = 0; n < RowTiles; ++n)
        for (int i = 0; i < sums; ++i)
          scores_[b][n][i] = token(b, i) < count ? scores_[b][n][i] * scale : -__builtin_inff();
  }
  /// Multiplies the scores of each token by the scale of its key. of_lane: the scale of token lane % tokens.
  PAGODA_HIP_FUNCTION void scale_scores(float of_lane) {
    PAGODA_UNROLL_ALL
    for (int b = 0; b < TokenBlocks; ++b)
      for (int i = 0; i < sums; ++i) {
        const float scale = from_lane(of_lane, token(b, i));
        PAGODA_UNROLL_ALL
        for (int n = 0; n < RowTiles; ++n) scores_[b][n][i] *= scale;
      }
  }
  /// Calls change(n, token, score) for the lane's scores of the first `count` tokens, in rows 16 n + column.
  template <class Change>
  PAGODA_HIP_FUNCTION void for_each_score(int count, const Change& change) {
    PAGODA_UNROLL_ALL
    for (int b = 0; b < TokenBlocks; ++b)
      for (int n = 0; n < RowTiles; ++n)
        for (int i = 0; i < sums; ++i) {
          float x = scores_[b][n][i];
          if (token(b, i) < count) change(n, token(b, i), x);
          scores_[b][n][i] = x;
        }
  }

  /// Scores become weights of value rows: probabilities relative to the running maximum. hides: a score of -infinity
  /// marks a token that the row does not see.
  PAGODA_HIP_FUNCTION void softmax(bool hides) {
    raise_where_exceeded(Unscaled{});
    if (hides) {
      exponentiate(std::true_type{}, Unscaled{});
    } else {
      exponentiate(std::false_type{}, Unscaled{});
    }
  }
  /// The same for tokens with scales of values. of_lane: the scale of token lane % tokens.
  PAGODA_HIP_FUNCTION void softmax_scaled(bool hides, float of_lane) {
    float of_token[TokenBlocks][sums];
    PAGODA_UNROLL_ALL
    for (int b = 0; b < TokenBlocks; ++b)
      for (int i = 0; i < sums; ++i) of_token[b][i] = from_lane(of_lane, token(b, i));
    const Scaled scales{of_token};
    raise_where_exceeded(scales);
    if (hides) {
      exponentiate(std::true_type{}, scales);
    } else {
      exponentiate(std::false_type{}, scales);
    }
  }

  /// Output += values x probabilities.
  PAGODA_HIP_FUNCTION void multiply_values() {
    for_each_value([&](int b, int j, Operand a) {
      PAGODA_UNROLL_ALL
      for (int n = 0; n < RowTiles; ++n) out_[n][j] = Arch::template multiply<type>(a, weights_[b][n], out_[n][j]);
    });
  }
  /// The second product for tiles with values that are not finite and tokens that a row does not see: one product for
  /// each row, with 0 in place of the values that it does not see. Slow and rarely needed.
  PAGODA_HIP_FUNCTION void multiply_visible_values() {
    PAGODA_UNROLL_ALL
    for (int n = 0; n < RowTiles; ++n) {
      PAGODA_UNROLL(1)
      for (int r = 0; r < 16; ++r) {
        settle_values();  // or operands of all products are made before the loop and occupy registers
        Operand seen[TokenBlocks];
        PAGODA_UNROLL_ALL
        for (int b = 0; b < TokenBlocks; ++b)
          for (int w = 0; w < words; ++w) seen[b][w] = visible_halves(from_lane(weights_[b][n][w], 16 * group_ + r));
        for_each_value([&](int b, int j, Operand a) {
          const Sums sum = Arch::template multiply<type>(a & seen[b], weights_[b][n], Sums{});
          if (column_ == r) out_[n][j] += sum;
          keep_order();  // operands made ahead would occupy registers
        });
      }
    }
  }
  /// Whether no value of the tile is infinite or NaN.
  PAGODA_HIP_FUNCTION bool values_are_finite() const {
    if constexpr (!Storage::floating) return true;
    // An exponent of ones overflows into the upper bit of its half.
    constexpr std::uint32_t exponent = type == MatrixType::fp16 ? 0x7c007c00u : 0x7f807f80u;
    constexpr std::uint32_t one      = type == MatrixType::fp16 ? 0x04000400u : 0x00800080u;
    std::uint32_t ones               = 0;
    PAGODA_UNROLL_ALL
    for (const auto& block : values_) {
      PAGODA_UNROLL_ALL
      for (const auto& token : block)
        for (const ValueWords& load : token)
          for (int w = 0; w < value_words; ++w) {
            std::uint32_t x[per_half];
            Storage::expand(load[w], x);
            PAGODA_UNROLL_ALL
            for (const std::uint32_t halves : x) ones |= (halves & exponent) + one;
          }
    }
    return !any_lane((ones & 0x80008000u) != 0);
  }

  /// Adds up the sums of the lanes of each row, once after the last tile.
  PAGODA_HIP_FUNCTION void sum_lanes() {
    PAGODA_UNROLL_ALL
    for (float& sum : sum_)
      for (int d = 16; d < Arch::lanes; d *= 2) sum += from_lane(sum, (16 * group_ + column_) ^ d);
  }
  /// Maximum (base 2) and sum of row 16 n + column. If the base was never raised, the row has seen no token.
  PAGODA_HIP_FUNCTION float most(int n) const { return sum_[n] == 0.0f ? -__builtin_inff() : base_[n]; }
  PAGODA_HIP_FUNCTION float sum(int n) const { return sum_[n]; }
  /// Output of row 16 n + column in dim value_dim(h, sum_row(i)) + j.
  PAGODA_HIP_FUNCTION float output(int n, int h, int i, int j) const { return out_[n][value_dims * h + j][i]; }

 private:
  /// The scales of values that weights contain.
  struct Unscaled {
    PAGODA_HIP_FUNCTION static float times(float p, int, int) { return p; }
    PAGODA_HIP_FUNCTION static float weight_log2(float x, int, int) { return x; }
  };
  struct Scaled {
    const float (&of_token)[TokenBlocks][sums];
    PAGODA_HIP_FUNCTION float times(float p, int b, int i) const { return p * of_token[b][i]; }
    PAGODA_HIP_FUNCTION float weight_log2(float x, int b, int i) const {
      return x + log2(__builtin_fmaxf(of_token[b][i], 0x1p-60f));
    }
  };

  PAGODA_HIP_FUNCTION int operand_group() const { return Arch::operand_groups == 1 ? 0 : group_; }

  /// Operand a of product p of block b: keys.
  PAGODA_HIP_FUNCTION Operand key_operand(int b, int p) const {
    constexpr int at_once = words < per_half ? words : per_half;  ///< words that come from one word of keys
    Operand a;
    PAGODA_UNROLL_ALL
    for (int k = 0; k < words; k += at_once) {
      const int first = words * p + k, word = first / per_half;
      std::uint32_t x[per_half];
      Storage::expand(keys_[b][word / 4][word % 4], x);
      PAGODA_UNROLL_ALL
      for (int e = 0; e < at_once; ++e) a[k + e] = x[first % per_half + e];
    }
    return a;
  }

  template <class Scales>
  PAGODA_HIP_FUNCTION void raise_where_exceeded(const Scales& scales) {
    float most[RowTiles];
    bool rises = false;
    PAGODA_UNROLL_ALL
    for (int n = 0; n < RowTiles; ++n) {
      most[n] = scales.weight_log2(scores_[0][n][0], 0, 0);
      PAGODA_UNROLL_ALL
      for (int b = 0; b < TokenBlocks; ++b)
        for (int i = 0; i < sums; ++i) most[n] = __builtin_fmaxf(most[n], scales.weight_log2(scores_[b][n][i], b, i));
      rises |= most[n] > base_[n] + rescale_threshold;
    }
    if (any_lane(rises)) raise_bases(most);
  }
  PAGODA_HIP_FUNCTION void raise_bases(float (&most)[RowTiles]) {
    PAGODA_UNROLL_ALL
    for (int n = 0; n < RowTiles; ++n) {
      PAGODA_UNROLL_ALL
      for (int d = 16; d < Arch::lanes; d *= 2)
        most[n] = __builtin_fmaxf(most[n], from_lane(most[n], (16 * group_ + column_) ^ d));
      const float base = __builtin_fmaxf(base_[n], most[n]), kept = exp2(base_[n] - base);
      base_[n] = base;
      sum_[n] *= kept;
      PAGODA_UNROLL_ALL
      for (Sums& out : out_[n]) out *= kept;
    }
  }
  template <class Hiding, class Scales>
  PAGODA_HIP_FUNCTION void exponentiate(Hiding, const Scales& scales) {
    PAGODA_UNROLL_ALL
    for (int b = 0; b < TokenBlocks; ++b)
      for (int n = 0; n < RowTiles; ++n) {
        float p[sums];
        PAGODA_UNROLL_ALL
        for (int i = 0; i < sums; ++i) {
          const float x = scores_[b][n][i];
          p[i]          = exp2(x - base_[n]);
          sum_[n] += p[i];
          p[i] = Hiding::value && x == -__builtin_inff() ? hidden_probability : scales.times(p[i], b, i);
        }
        Words<sums / 2> packed;
        PAGODA_UNROLL_ALL
        for (int w = 0; w < sums / 2; ++w) packed[w] = pack<type>(p[2 * w], p[2 * w + 1]);
        weights_[b][n] = Arch::operand(packed, group_);
      }
  }
  /// Calls f(b, j, a) for operand a of each output j and block b: dim j of the lane's tokens.
  template <class F>
  PAGODA_HIP_FUNCTION void for_each_value(const F& f) const {
    PAGODA_UNROLL_ALL
    for (int b = 0; b < TokenBlocks; ++b) {
      PAGODA_UNROLL_ALL
      for (int i = 0; i < value_loads * value_words; ++i) {
        pass_values<0>(f, b, i / value_words, i % value_words);
        pass_values<1>(f, b, i / value_words, i % value_words);
      }
    }
  }
  PAGODA_HIP_FUNCTION void settle_values() {
    PAGODA_UNROLL_ALL
    for (auto& block : values_) {
      PAGODA_UNROLL_ALL
      for (auto& token : block)
        for (ValueWords& x : token)  // by words: clang has no register for a vector of one word
          for (int w = 0; w < value_words; ++w) x[w] = settle(x[w]);
    }
  }
  /// The operands of the dims in the lower (Half 0) or upper (Half 1) 16 bits of word w of load h.
  template <int Half, class F>
  PAGODA_HIP_FUNCTION void pass_values(const F& f, int b, int h, int w) const {
    Operand a[per_half];
    PAGODA_UNROLL_ALL
    for (int k = 0; k < words; ++k) {
      std::uint32_t x[per_half];
      Storage::expand(pair_halves<Half>(values_[b][2 * k][h][w], values_[b][2 * k + 1][h][w]), x);
      PAGODA_UNROLL_ALL
      for (int e = 0; e < per_half; ++e) a[e][k] = x[e];
    }
    PAGODA_UNROLL_ALL
    for (int e = 0; e < per_half; ++e) f(b, value_dims * h + per_half * (2 * w + Half) + e, a[e]);
  }
  /// A mask of 16-bit halves: all bits where that of a word of probabilities is not hidden_probability.
  PAGODA_HIP_FUNCTION static std::uint32_t visible_halves(std::uint32_t p) {
    return ((p & 0xffffu) != 0x8000u ? 0xffffu : 0u) | (p >> 16 != 0x8000u ? 0xffff0000u : 0u);
  }

  int group_, column_;
  Words4 keys_[TokenBlocks][key_loads];
  ValueWords values_[TokenBlocks][operand_tokens][value_loads];
  Sums scores_[TokenBlocks][RowTiles];
  Operand weights_[TokenBlocks][RowTiles];  ///< of value rows, as operand b
  float base_[RowTiles], sum_[RowTiles];    ///< running maximum, and the sum of the lane's probabilities
  Sums out_[RowTiles][ValueDims / 16];      ///< output j of product j, see output()
};

}  // namespace pagoda::detail::hip
