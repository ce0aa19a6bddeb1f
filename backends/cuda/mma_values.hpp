// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/mma_block_scales.hpp"
#include "backends/cuda/primitives.hpp"
#include "src/base/unroll.hpp"

#include <Kokkos_Core.hpp>

#include <cstdint>

namespace pagoda::detail {

/// The second product of MmaFragment: values times probabilities, summed into the output.
template <class T, int DimTile, bool AnyQuery, bool AnyAlignment>
class MmaValues : public MmaBlockScales<T, DimTile, AnyQuery, AnyAlignment> {
 public:
  using Base = MmaBlockScales<T, DimTile, AnyQuery, AnyAlignment>;
  using Base::rows;
  using Base::tile_tokens;
  using typename Base::Storage;
  using ValueOperand = typename Storage::ValueOperand;

  /// Query row of the lane's scores and outputs of parity j.
  KOKKOS_FUNCTION int lane_row(int j) const { return 2 * column_ + j; }

 protected:
  using Base::Base;
  using Base::block_words;
  using Base::chunks;
  using Base::column_;
  using Base::in_blocks;
  using Base::row_;
  using Base::scaled;
  using Base::scales_weights;
  using Base::stage_;
  using Base::values_at_;

  /// sum += values x weights.
  KOKKOS_FUNCTION void multiply_value(float (&sum)[4], const std::uint32_t (&a)[4]) const {
    cuda::mma<ValueOperand>(sum, a[0], a[1], a[2], a[3], p_[0], p_[1]);
    if constexpr (scales_weights) cuda::mma<ValueOperand>(sum, a[0], a[1], a[2], a[3], p_rest_[0], p_rest_[1]);
  }

  /// The tile's values as operands of the second product, which do not depend on the scores: with their scales, or for
  /// scales_weights without them. `scale` then has the scales of all blocks, of tokens 2 column and 2 column + 1, and
  /// of the same + 8.
  struct Prepared {
    std::uint32_t a[DimTile / 16][4];
    std::uint32_t scale[2][scales_weights ? 4 * block_words : 1];
  };
  KOKKOS_FUNCTION void prepare_values(Prepared& v) const {
    if constexpr (scales_weights) {
      PAGODA_UNROLL_ALL
      for (int i = 0; i < chunks / 2; ++i) {
        std::uint32_t w[4];
        cuda::load_matrices<true>(w, (values_at_ ^ (i << 5)) + stage_);
        PAGODA_UNROLL_ALL
        for (int j = 0; j < 2; ++j) {
          std::uint32_t a[Storage::steps][4];
          Storage::unscaled_values(w[j], w[2 + j], a);
          PAGODA_UNROLL_ALL
          for (int step = 0; step < Storage::steps; ++step)
            for (int e = 0; e < 4; ++e) v.a[Storage::steps * (2 * i + j) + step][e] = a[step][e];
        }
      }
      load_weight_scales(v);
    } else {
      for_each_value([&](int o, const std::uint32_t (&a)[4]) {
        PAGODA_UNROLL_ALL
        for (int e = 0; e < 4; ++e) v.a[o][e] = a[e];
      });
    }
  }
  KOKKOS_FUNCTION void load_weight_scales(Prepared& v) const {
    for (int t = 0; t < 2; ++t) cuda::load_words(v.scale[t], this->converted_row(tile_tokens + 2 * column_ + 8 * t));
  }
  /// out_ += values x weights. For scales_weights, the scales of values must be in the range for products with weights.
  KOKKOS_FUNCTION void multiply_prepared(const Prepared& v) {
    PAGODA_UNROLL_ALL
    for (int o = 0; o < DimTile / 16; ++o) {
      std::uint32_t p[2] = {p_[0], p_[1]};
      if constexpr (scales_weights)
        for (int t = 0; t < 2; ++t)
          p[t] = cuda::multiply_pairs<half_t>(
              p[t], Storage::template weight_scales<block_words>(v.scale[t], o / Storage::steps));
      cuda::mma<half_t>(out_[o], v.a[o][0], v.a[o][1], v.a[o][2], v.a[o][3], p[0], p[1]);
    }
  }

  /// Calls f(o, a) for operand a of each output o, for all values of the tile.
  template <class F>
  KOKKOS_FUNCTION void for_each_value(const F& f) const {
    [[maybe_unused]] std::uint32_t scale[2][in_blocks ? 2 * block_words : 1];  // tokens 2 column, + 1, and both + 8
    [[maybe_unused]] std::uint32_t codes[4][in_blocks ? block_words : 1];
    if constexpr (scales_weights) {
      for (int t = 0; t < 4; ++t)
        for (int i = 0; i < block_words; ++i)
          codes[t][i] = reinterpret_cast<const std::uint32_t*>(
              this->converted_row(tile_tokens + 2 * column_ + t % 2 + 8 * (t / 2)))[i];
    } else if constexpr (in_blocks)
      for (int t = 0; t < 2; ++t)
        cuda::load_words(scale[t], this->converted_row(tile_tokens + 2 * column_ + 8 * t + Storage::value_block(row_)));
    PAGODA_UNROLL_ALL
    for (int i = 0; i < chunks / 2; ++i) {
      std::uint32_t v[4];  // tokens 0 .. 7 of two chunks, then tokens 8 .. 15
      cuda::load_matrices<true>(v, (values_at_ ^ (i << 5)) + stage_);
      if constexpr (scaled) {
        PAGODA_UNROLL_ALL
        for (int j = 0; j < 2; ++j) {
          std::uint32_t a[Storage::steps][4];
          if constexpr (scales_weights) {
            const int block = 2 * i + j, word = block / 4;
            Storage::values(v[j], v[2 + j], {codes[0][word], codes[1][word], codes[2][word], codes[3][word]}, block % 4,
                            a);
          } else if constexpr (in_blocks) {
            const int n = j * block_words + i;
            Storage::values(v[j], v[2 + j], scale[0][n], scale[1][n], a);
          } else {
            Storage::values(v[j], v[2 + j], a);
          }
          PAGODA_UNROLL_ALL
          for (int step = 0; step < Storage::steps; ++step) f(Storage::steps * (2 * i + j) + step, a[step]);
        }
      } else {
        f(i, v);
      }
    }
  }
  KOKKOS_FUNCTION bool values_are_finite() const {
    std::uint32_t zeros = 0;
    for_each_value([&](int, const std::uint32_t (&a)[4]) {
      PAGODA_UNROLL_ALL
      for (const std::uint32_t word : a) zeros = cuda::add_zero_times<ValueOperand>(word, zeros);
    });
    return !cuda::any_lane((zeros & 0x7fff7fffu) != 0);
  }
  /// The second product for tiles with values that are not finite and tokens that a row does not see: one product for
  /// each row, with 0 in place of the values that it does not see. Slow and rarely needed.
  KOKKOS_FUNCTION void multiply_visible_values() {
    PAGODA_UNROLL(1)
    for (int r = 0; r < rows; ++r) {
      // The lane's words of operand a belong to tokens 2 column and 2 column + 1, and to the same + 8.
      const int lane           = 4 * r + column_;
      const std::uint32_t seen = cuda::visible_halves(cuda::from_lane(p_[0], lane));
      const std::uint32_t next = cuda::visible_halves(cuda::from_lane(p_[1], lane));
      for_each_value([&](int o, const std::uint32_t (&a)[4]) {
        float sum[4] = {};
        multiply_value(sum, {a[0] & seen, a[1] & seen, a[2] & next, a[3] & next});
        PAGODA_UNROLL_ALL
        for (int e = 0; e < 2; ++e)
          if (lane_row(e) == r) out_[o][e] += sum[e], out_[o][2 + e] += sum[2 + e];
      });
    }
  }

  KOKKOS_FUNCTION void multiply_output(float factor) {
    PAGODA_UNROLL_ALL
    for (auto& o : out_)
      for (float& x : o) x *= factor;
  }

  std::uint32_t p_[2], p_rest_[2];  ///< weights; and their rounding errors if they are split
  float out_[DimTile / 16][4] = {};
};

}  // namespace pagoda::detail
