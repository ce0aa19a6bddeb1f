// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/base/unroll.hpp"

#include <Kokkos_Core.hpp>

/// Sums and maxima over lanes of a warp.
namespace pagoda::detail::cuda {

/// Adds each of the first Count elements of x over the lanes that differ in the bit Step and in lower bits, and spreads
/// the sums over these lanes. In each step a lane whose bit is set keeps the second half of the sums, the other lane
/// the first half; then the next lower bit follows, until one sum, or no bit, is left. The sums that a lane keeps come
/// first in x.
template <int Step, int Count, int Size>
KOKKOS_INLINE_FUNCTION void add_and_spread([[maybe_unused]] float (&x)[Size], [[maybe_unused]] int lane) {
#if defined(__CUDA_ARCH__)
  if constexpr (Step > 0 && Count > 1) {
    const bool second = (lane & Step) != 0;
    PAGODA_UNROLL_ALL
    for (int i = 0; i < Count / 2; ++i) {
      const float keep = second ? x[i + Count / 2] : x[i], give = second ? x[i] : x[i + Count / 2];
      x[i] = keep + __shfl_xor_sync(~0u, give, Step);
    }
    add_and_spread<Step / 2, Count / 2>(x, lane);
  }
#endif
}

/// The sum of x over aligned groups of Lanes lanes, in all of them.
template <int Lanes>
KOKKOS_INLINE_FUNCTION float sum_of_group(float x) {
#if defined(__CUDA_ARCH__)
  PAGODA_UNROLL_ALL
  for (int d = 1; d < Lanes; d *= 2) x += __shfl_xor_sync(~0u, x, d);
#endif
  return x;
}

/// The maximum of x over aligned groups of Lanes lanes, in all of them.
template <int Lanes, class T>
KOKKOS_INLINE_FUNCTION T max_of_group(T x) {
#if defined(__CUDA_ARCH__)
  PAGODA_UNROLL_ALL
  for (int d = 1; d < Lanes; d *= 2) x = max(x, __shfl_xor_sync(~0u, x, d));
#endif
  return x;
}

}  // namespace pagoda::detail::cuda
