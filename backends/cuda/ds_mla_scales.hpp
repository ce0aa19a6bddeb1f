// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/primitives.hpp"
#include "src/base/arithmetic.hpp"
#include "src/base/unroll.hpp"

#include <Kokkos_Core.hpp>

#include <cstdint>

namespace pagoda::detail {

/// The turns in which the tokens of a tile are multiplied by their values.
struct DsMlaTurn {
  int left = 15;  ///< a bit for each of the lane's tokens that had no turn
};

/// Scales of values, in a warp that multiplies dims of one scale for each token. Probabilities times scales are the
/// fp16 operand of the second product, which has few exponents. The outputs therefore have a unit, a power of two, and
/// scales are divided by it. A scale fits if the quotient lies from 2^-7 to 2^7: probabilities of up to 2^8 then are
/// at most 2^15, and those from 2^-7 on have all bits.
///
/// If a scale of a tile does not fit, the unit changes, and the outputs with it. If the scales of a tile are so
/// different that no unit fits all, tokens have several turns, the largest scales first, and factor 0 in the turns of
/// the others. A unit is at least 2^-60 times the largest one of the item, so that outputs stay finite; smaller scales
/// lose bits.
class DsMlaScales {
 public:
  /// Whether all scales of the tile fit. scales: of the lane's four tokens.
  KOKKOS_FUNCTION bool fit(const float (&scales)[4]) const {
    std::uint32_t above = 0;  // the sign, and whatever is not a number, makes it large
    PAGODA_UNROLL_ALL
    for (const float scale : scales) above = greatest(above, bits(scale) - (std::uint32_t(low_) << 23));
    return !cuda::any_lane(above >= std::uint32_t(window) << 23);
  }

  /// Turns the scales of the lane's four tokens into factors of the next turn. odd: some do not fit; then the unit of
  /// `out` changes, and the result says whether tokens are left for another turn. highest: the largest low_ so far; it
  /// lies in scratch, because registers are short.
  template <class Outputs>
  KOKKOS_FUNCTION bool take(float (&scales)[4], bool odd, DsMlaTurn& turn, Outputs& out, int* highest) {
    bool last = true;
    if (odd) {
      int most = 0;
      PAGODA_UNROLL_ALL
      for (int i = 0; i < 4; ++i)
        if ((turn.left >> i & 1) != 0 && exponent(scales[i]) < 255) most = greatest(most, exponent(scales[i]));
      most             = cuda::max_of_lanes(most);
      const int before = *highest, least = greatest(before - 60, 0);
      cuda::sync_warp();  // all lanes have read it
      last = most - room <= least;
      change_unit(last ? least : most - room, out);
      *highest = greatest(before, low_);
      PAGODA_UNROLL_ALL
      for (int i = 0; i < 4; ++i) {
        const int e    = exponent(scales[i]);
        const bool now = (turn.left >> i & 1) != 0 && (last || e >= low_ || scales[i] == 0.0f);
        if (now) turn.left &= ~(1 << i);
        if (!now) scales[i] = 0.0f;
      }
      last = !cuda::any_lane(turn.left != 0);
    }
    const float factor = power_of_two(247 - low_);  // 2^-7 for the lowest scale that fits
    PAGODA_UNROLL_ALL
    for (float& scale : scales) scale *= factor;
    return !last;
  }

  /// The unit of the outputs.
  KOKKOS_FUNCTION float unit() const { return power_of_two(low_ + 7); }

 private:
  static constexpr int window = 14;  ///< exponents that fit
  static constexpr int room   = 10;  ///< exponents below the largest of a tile that changes the unit

  KOKKOS_FUNCTION static std::uint32_t bits(float x) { return Kokkos::bit_cast<std::uint32_t>(x); }
  KOKKOS_FUNCTION static int exponent(float x) { return static_cast<int>(bits(x) >> 23 & 255); }
  KOKKOS_FUNCTION static float power_of_two(int biased) {
    return Kokkos::bit_cast<float>(static_cast<std::uint32_t>(biased) << 23);
  }
  template <class Outputs>
  KOKKOS_FUNCTION void change_unit(int low, Outputs& out) {
    const float factor = power_of_two(greatest(low_ - low, -126) + 127);
    low_               = low;
    PAGODA_UNROLL_ALL
    for (auto& of_group : out)
      for (auto& pair : of_group)
        for (auto& o : pair)
          for (float& x : o) x *= factor;
  }

  int low_ = 0;  ///< biased exponent of the lowest scale that fits
};

}  // namespace pagoda::detail
