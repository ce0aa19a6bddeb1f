// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Kokkos_Core.hpp>

#include <cstdint>

namespace pagoda::detail {

/// A double as a float that rounds to any narrower type (of up to 22 significant bits) as the double itself does. An
/// inexact value becomes that of the two floats around it whose last bit is 1. So it is never a tie of the narrower
/// type, and lies on the same side of every tie as the double. A conversion to the nearest float would round twice.
/// Source: Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums: proved algorithms using rounding to
/// odd".
KOKKOS_INLINE_FUNCTION float round_to_odd(double x) {
  const float nearest = static_cast<float>(x);
  const double back   = nearest;
  const auto bits     = Kokkos::bit_cast<std::uint32_t>(nearest);
  if (back == x || x != x || (bits & 1u) != 0) return nearest;
  // An even last bit: the other neighbour has an odd one. Infinity is even, and its neighbour is the largest float.
  const bool beyond = x < 0 ? back < x : back > x;
  return Kokkos::bit_cast<float>(beyond ? bits - 1 : bits + 1);
}

}  // namespace pagoda::detail
