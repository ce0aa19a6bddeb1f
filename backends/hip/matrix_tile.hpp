// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/hip/matrix.hpp"
#include "backends/hip/matrix_operands.hpp"
#include "backends/hip/matrix_storage.hpp"
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
class MatrixTile : public MatrixOperands<Arch, Storage, KeyDims, ValueDims, TokenBlocks> {
  using Operands = MatrixOperands<Arch, Storage, KeyDims, ValueDims, TokenBlocks>;
  using Operands::column_;
  using Operands::for_each_value;
  using Operands::group_;
  using Operands::key_operand;
  using Operands::lane;
  using Operands::scales_;
  using Operands::settle_keys;
  using Operands::settle_values;
  using Operands::type;
  using Operands::values_are_finite;
  using Operands::words;
  using typename Operands::Operand;
  using typename Operands::Scales;
  using Sums = typename Arch::Sums;

 public:
  using Operands::query_loads;
  using Operands::sums;
  using Operands::token;
  using Operands::value_dims;
  static constexpr int rows = 16 * RowTiles;

  /// Operand b of a tile of queries, in the order of the expanded keys. For each chunk of keys, per_half loads.
  struct Queries {
    Words4 at[RowTiles][query_loads];
  };

  PAGODA_HIP_FUNCTION explicit MatrixTile(int lane) : Operands(lane) {
    PAGODA_UNROLL_ALL
    for (int n = 0; n < RowTiles; ++n) base_[n] = initial_max, sum_[n] = 0;
    PAGODA_UNROLL_ALL
    for (auto& row_tile : out_)
      for (Sums& out : row_tile) out = 0;
  }

  /// Brings queries, loaded in the order of their dims, in the order of the expanded keys.
  PAGODA_HIP_FUNCTION static void order_queries(Queries& q) {
    PAGODA_UNROLL_ALL
    for (auto& row : q.at) order_as_expanded<Storage>(row);
  }

  /// Scores = keys x queries.
  PAGODA_HIP_FUNCTION void multiply_keys(const Queries& q) {
    PAGODA_UNROLL_ALL
    for (int b = 0; b < TokenBlocks; ++b)
      for (int n = 0; n < RowTiles; ++n) scores_[b][n] = 0;
    add_key_products(q);
  }
  PAGODA_HIP_FUNCTION void add_key_products(const Queries& q) {
    if constexpr (Scales::has_windows) {
      scales_.begin_keys(lane());
      do add_scaled_key_products(q);
      while (scales_.next_keys());
    } else {
      scales_.convert_keys();
      PAGODA_UNROLL_ALL
      for (int b = 0; b < TokenBlocks; ++b) multiply_block(b, q, scores_[b]);
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

  /// Output += values x probabilities. hides: as for softmax.
  PAGODA_HIP_FUNCTION void multiply_values(bool hides) {
    if constexpr (Scales::has_windows) {
      scales_.begin_values(lane());
      do multiply_converted_values(hides);
      while (scales_.next_values());
    } else {
      scales_.convert_values();
      multiply_converted_values(hides);
    }
  }
  /// Adds up the sums of the lanes of each row, once after the last tile.
  PAGODA_HIP_FUNCTION void sum_lanes() {
    PAGODA_UNROLL_ALL
    for (float& sum : sum_)
      for (int d = 16; d < Arch::lanes; d *= 2) sum += from_lane(sum, lane() ^ d);
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

  /// sum += keys of block b x queries
  PAGODA_HIP_FUNCTION void multiply_block(int b, const Queries& q, Sums (&sum)[RowTiles]) const {
    PAGODA_UNROLL_ALL
    for (int p = 0; p < KeyDims / 16; ++p) {
      const Operand a = key_operand(b, p);
      PAGODA_UNROLL_ALL
      for (int n = 0; n < RowTiles; ++n) {
        Operand of_row;
        PAGODA_UNROLL_ALL
        for (int k = 0; k < words; ++k) of_row[k] = q.at[n][(words * p + k) / 4][(words * p + k) % 4];
        sum[n] = Arch::template multiply<type>(a, of_row, sum[n]);
      }
    }
  }
  PAGODA_HIP_FUNCTION void add_scaled_key_products(const Queries& q) {
    settle_keys();
    PAGODA_UNROLL_ALL
    for (int b = 0; b < TokenBlocks; ++b) {
      Sums sum[RowTiles] = {};
      multiply_block(b, q, sum);
      PAGODA_UNROLL_ALL
      for (int n = 0; n < RowTiles; ++n) scores_[b][n] += sum[n] * scales_.key_factor();
    }
  }

  template <class TokenScales>
  PAGODA_HIP_FUNCTION void raise_where_exceeded(const TokenScales& scales) {
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
      for (int d = 16; d < Arch::lanes; d *= 2) most[n] = __builtin_fmaxf(most[n], from_lane(most[n], lane() ^ d));
      const float base = __builtin_fmaxf(base_[n], most[n]), kept = exp2(base_[n] - base);
      base_[n] = base;
      sum_[n] *= kept;
      PAGODA_UNROLL_ALL
      for (Sums& out : out_[n]) out *= kept;
    }
  }
  template <class Hiding, class TokenScales>
  PAGODA_HIP_FUNCTION void exponentiate(Hiding, const TokenScales& scales) {
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
        weights_[n][b] = Arch::operand(packed, group_);
      }
  }
  PAGODA_HIP_FUNCTION void multiply_converted_values(bool hides) {
    if (hides && !values_are_finite()) return multiply_visible_values();
    if constexpr (Scales::has_windows) settle_values();
    for_each_value([&](int j, const Operand(&a)[TokenBlocks]) {
      PAGODA_UNROLL_ALL
      for (int n = 0; n < RowTiles; ++n) add_products(out_[n][j], a, weights_[n]);
    });
  }
  /// out += values x weights
  PAGODA_HIP_FUNCTION void add_products(Sums& out, const Operand (&a)[TokenBlocks],
                                        const Operand (&weights)[TokenBlocks]) const {
    Sums sum = Scales::has_windows ? Sums{} : out;
    PAGODA_UNROLL_ALL
    for (int b = 0; b < TokenBlocks; ++b) sum = Arch::template multiply<type>(a[b], weights[b], sum);
    if constexpr (Scales::has_windows) {
      out += sum * scales_.value_factor();
    } else {
      out = sum;
    }
  }
  /// The second product for tiles with values that are not finite and tokens that a row does not see: one product for
  /// each row, with 0 in place of the values that it does not see. Slow and rarely needed.
  PAGODA_HIP_FUNCTION void multiply_visible_values() {
    PAGODA_UNROLL_ALL
    for (int n = 0; n < RowTiles; ++n) {
      PAGODA_UNROLL(1)
      for (int r = 0; r < 16; ++r) {
        settle_values();
        Operand seen[TokenBlocks];
        PAGODA_UNROLL_ALL
        for (int b = 0; b < TokenBlocks; ++b)
          for (int w = 0; w < words; ++w) seen[b][w] = visible_halves(from_lane(weights_[n][b][w], 16 * group_ + r));
        for_each_value([&](int j, const Operand(&a)[TokenBlocks]) {
          Operand visible[TokenBlocks];
          PAGODA_UNROLL_ALL
          for (int b = 0; b < TokenBlocks; ++b) visible[b] = a[b] & seen[b];
          Sums out = out_[n][j];
          add_products(out, visible, weights_[n]);
          if (column_ == r) out_[n][j] = out;
          keep_order();  // operands made ahead would occupy registers
        });
      }
    }
  }
  /// A mask of 16-bit halves: all bits where that of a word of probabilities is not hidden_probability.
  PAGODA_HIP_FUNCTION static std::uint32_t visible_halves(std::uint32_t p) {
    return ((p & 0xffffu) != 0x8000u ? 0xffffu : 0u) | (p >> 16 != 0x8000u ? 0xffff0000u : 0u);
  }

  Sums scores_[TokenBlocks][RowTiles];
  Operand weights_[RowTiles][TokenBlocks];  ///< of value rows, as operand b
  float base_[RowTiles], sum_[RowTiles];    ///< running maximum, and the sum of the lane's probabilities
  Sums out_[RowTiles][ValueDims / 16];      ///< output j of product j, see output()
};

}  // namespace pagoda::detail::hip
