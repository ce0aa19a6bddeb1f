// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Kokkos_Core.hpp>

/// Arithmetic of kernels, in few instructions.
namespace pagoda::detail {

/// Minimum, by value. Kokkos::min and max return references; if one of them is a kernel argument, nvcc chooses between
/// addresses and loads from memory.
template <class T>
KOKKOS_INLINE_FUNCTION constexpr T least(T a, T b) {
  return b < a ? b : a;
}
template <class T>
KOKKOS_INLINE_FUNCTION constexpr T greatest(T a, T b) {
  return a < b ? b : a;
}

// One instruction on a GPU instead of a comparison and a selection.
KOKKOS_INLINE_FUNCTION float greatest(float a, float b) {
  float most = a < b ? b : a;
  KOKKOS_IF_ON_DEVICE((most = Kokkos::fmax(a, b);))
  return most;
}

/// 1 / x to about a unit in the last place, for x that is neither tiny nor huge.
KOKKOS_INLINE_FUNCTION float reciprocal(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#elif defined(__HIP_DEVICE_COMPILE__)
  return __builtin_amdgcn_rcpf(x);
#else
  return 1.0f / x;
#endif
}
KOKKOS_INLINE_FUNCTION double reciprocal(double x) { return 1.0 / x; }

/// a / b for a >= 0 and b > 0. GPUs divide integers with floating-point instructions; this needs fewer of them.
KOKKOS_INLINE_FUNCTION int quotient(int a, int b) {
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
  const float inverse = reciprocal(static_cast<float>(b));
  int q               = static_cast<int>(static_cast<float>(a) * inverse);
  int rest            = a - q * b;  // remainder of the rounded quotient, of either sign
  const int more      = static_cast<int>(static_cast<float>(rest) * inverse);
  q += more, rest -= more * b;
  return q + (rest >= b) - (rest < 0);
#else
  return a / b;
#endif
}

/// a / b rounded up. a + b may exceed an int.
KOKKOS_INLINE_FUNCTION int ceil_div(int a, int b) {
  const int q = quotient(a, b);
  return q + (q * b < a);
}

/// The smallest multiple of `width`, a constant, that is at least n.
KOKKOS_INLINE_FUNCTION constexpr int padded(int n, int width) { return (n + width - 1) / width * width; }

}  // namespace pagoda::detail
