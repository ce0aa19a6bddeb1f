// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/mma_values.hpp"
#include "backends/cuda/primitives.hpp"
#include "src/base/arithmetic.hpp"
#include "src/base/unroll.hpp"
#include "src/kernel/online_softmax.hpp"

#include <Kokkos_Core.hpp>

#include <type_traits>

namespace pagoda::detail {

/// The online softmax of MmaFragment. Lanes with equal columns hold scores of the same two query rows.
template <class T, int DimTile, bool AnyQuery, bool AnyAlignment>
class MmaSoftmax : public MmaValues<T, DimTile, AnyQuery, AnyAlignment> {
 protected:
  using Values = MmaValues<T, DimTile, AnyQuery, AnyAlignment>;
  using Values::in_blocks;
  using Values::out_;
  using Values::scaled;
  using Values::value_scale_;
  using Values::Values;
  static constexpr float infinity = Kokkos::Experimental::infinity_v<float>;

  /// Maximum of the weights of value rows: with scales of tokens, the most probable token need not have the largest.
  KOKKOS_FUNCTION void largest_weights([[maybe_unused]] float (&most)[2]) const {
#if defined(__CUDA_ARCH__)
    PAGODA_UNROLL_ALL
    for (int e = 0; e < 2; ++e) most[e] = fmaxf(x_[e], x_[2 + e]);
    if constexpr (scaled && !in_blocks)
      for (int e = 0; e < 2; ++e) most[e] = fmaxf(x_[e] + weight_log2(0), x_[2 + e] + weight_log2(1));
#endif
  }
  KOKKOS_FUNCTION bool exceeds_base(const float (&most)[2]) const {
    return most[0] > base_[0] + rescale_threshold || most[1] > base_[1] + rescale_threshold;
  }
  KOKKOS_FUNCTION void raise_base([[maybe_unused]] float (&most)[2]) {
#if defined(__CUDA_ARCH__)
    PAGODA_UNROLL_ALL
    for (int e = 0; e < 2; ++e) {
      for (int d = 4; d < 32; d *= 2) most[e] = fmaxf(most[e], __shfl_xor_sync(~0u, most[e], d));
      const float base = fmaxf(base_[e], most[e]), kept = cuda::exp2(base_[e] - base);
      base_[e] = base;
      sum_[e] *= kept;
      PAGODA_UNROLL_ALL
      for (auto& o : out_) o[e] *= kept, o[2 + e] *= kept;
    }
#endif
  }
  /// Turns scores into probabilities times weights.
  KOKKOS_FUNCTION void exponentiate(bool hides) {
    if (AnyQuery && hides) {
      exponentiate_tile(std::true_type{});
    } else {
      exponentiate_tile(std::false_type{});
    }
  }
  template <class Hiding>
  KOKKOS_FUNCTION void exponentiate_tile(Hiding hiding) {
    PAGODA_UNROLL_ALL
    for (int i = 0; i < 4; ++i) {
      const bool hidden = hiding && x_[i] == -infinity;
      x_[i]             = cuda::exp2(x_[i] - base_[i % 2]);
      sum_[i % 2] += x_[i];
      x_[i] = hidden ? hidden_probability : x_[i] * weight(i / 2);
    }
  }

  float x_[4];  ///< scores, then weights: the lane's first token in both rows, then its second
  float base_[2] = {initial_max, initial_max}, sum_[2] = {};

 private:
  /// The factor of a probability, and its logarithm to base 2, at least -60.
  KOKKOS_FUNCTION float weight(int i) const { return scaled && !in_blocks ? value_scale_[i] : 1.0f; }
  KOKKOS_FUNCTION float weight_log2(int i) const {
    return scaled && !in_blocks ? cuda::log2(greatest(weight(i), 0x1p-60f)) : 0.0f;
  }
};

}  // namespace pagoda::detail
