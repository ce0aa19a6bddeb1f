// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hip/hip_runtime.h>

#include <cstdint>

/// Instructions of CDNA that the fragments use, in plain HIP. Waves have 64 lanes.
namespace pagoda::detail::hip {

/// Always inlined: an object that a call gets by reference lies in scratch memory.
#define PAGODA_HIP_FUNCTION __host__ __device__ inline __attribute__((always_inline))

using Words2 = std::uint32_t __attribute__((ext_vector_type(2)));
using Words4 = std::uint32_t __attribute__((ext_vector_type(4)));
using Float4 = float __attribute__((ext_vector_type(4)));

/// Type of the operands of a matrix instruction.
enum class MfmaType { fp16, bf16 };

/// sum + a b for a 16 x 16 matrix a, a 16 x 16 matrix b and float sums. Lane l holds elements 4 (l / 16) .. + 4 of row
/// l % 16 of a and of column l % 16 of b, and sums of rows 4 (l / 16) .. + 4 in column l % 16.
template <MfmaType Type>
PAGODA_HIP_FUNCTION Float4 mfma([[maybe_unused]] Words2 a, [[maybe_unused]] Words2 b, Float4 sum) {
#if defined(__gfx90a__) || defined(__gfx942__)
  if constexpr (Type == MfmaType::fp16) {
    using Operand = _Float16 __attribute__((ext_vector_type(4)));
    sum = __builtin_amdgcn_mfma_f32_16x16x16f16(__builtin_bit_cast(Operand, a), __builtin_bit_cast(Operand, b), sum, 0,
                                                0, 0);
  } else {
    using Operand = short __attribute__((ext_vector_type(4)));
    sum = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(__builtin_bit_cast(Operand, a), __builtin_bit_cast(Operand, b), sum,
                                                    0, 0, 0);
  }
#endif
  return sum;
}

/// Loads from global memory. The address space is named because the compiler does not always find it, and flat loads
/// also wait for LDS.
template <class Words>
PAGODA_HIP_FUNCTION Words load_global([[maybe_unused]] const char* from) {
#if defined(__HIP_DEVICE_COMPILE__)
  using Global = const Words __attribute__((address_space(1)));
  return *(Global*)(from);
#else
  return Words{};
#endif
}

/// The lower (Half 0) or the upper (Half 1) 16 bits of two words, those of `low` in the lower half.
template <int Half>
PAGODA_HIP_FUNCTION std::uint32_t pair_halves([[maybe_unused]] std::uint32_t low, [[maybe_unused]] std::uint32_t high) {
#if defined(__HIP_DEVICE_COMPILE__)
  return __builtin_amdgcn_perm(high, low, Half == 0 ? 0x05040100u : 0x07060302u);
#else
  return 0;
#endif
}

/// Two floats as fp16 or bf16, rounded to nearest. CDNA 3 has no instruction that converts to bf16.
template <MfmaType Type>
PAGODA_HIP_FUNCTION std::uint32_t pack(float low, float high) {
  if constexpr (Type == MfmaType::fp16) {
    using Pair = _Float16 __attribute__((ext_vector_type(2)));
    return __builtin_bit_cast(std::uint32_t, Pair{static_cast<_Float16>(low), static_cast<_Float16>(high)});
  } else {
    const auto rounded = [](float x) {
      const auto bits = __builtin_bit_cast(std::uint32_t, x);
      return bits + 0x7fff + (bits >> 16 & 1);
    };
    return pair_halves<1>(rounded(low), rounded(high));
  }
}

/// 2^x. Results below the smallest normal number are 0.
PAGODA_HIP_FUNCTION float exp2([[maybe_unused]] float x) {
#if defined(__HIP_DEVICE_COMPILE__)
  return __builtin_amdgcn_exp2f(x);
#else
  return x;
#endif
}

/// x of the first lane, as a scalar: x must be the same in all lanes.
PAGODA_HIP_FUNCTION int uniform(int x) {
#if defined(__HIP_DEVICE_COMPILE__)
  return __builtin_amdgcn_readfirstlane(x);
#else
  return x;
#endif
}

/// x of a lane, as a scalar: `lane` must be the same in all lanes.
PAGODA_HIP_FUNCTION int scalar_of_lane(int x, [[maybe_unused]] int lane) {
#if defined(__HIP_DEVICE_COMPILE__)
  return __builtin_amdgcn_readlane(x, lane);
#else
  return x;
#endif
}

/// Hides the value from the compiler, which then cannot compute what depends on it elsewhere. If x is being loaded,
/// the wave waits for it here.
template <class X>
PAGODA_HIP_FUNCTION X settle(X x) {
#if defined(__HIP_DEVICE_COMPILE__)
  asm volatile("" : "+v"(x));
#endif
  return x;
}

/// Whether x is true in any lane of the wave.
PAGODA_HIP_FUNCTION bool any_lane(bool x) {
#if defined(__HIP_DEVICE_COMPILE__)
  return __ballot(x) != 0;
#else
  return x;
#endif
}

/// The value of x in another lane of the wave.
template <class X>
PAGODA_HIP_FUNCTION X from_lane(X x, [[maybe_unused]] int lane) {
  static_assert(sizeof(X) == 4);
#if defined(__HIP_DEVICE_COMPILE__)
  return __builtin_bit_cast(X, __builtin_amdgcn_ds_bpermute(4 * lane, __builtin_bit_cast(int, x)));
#else
  return x;
#endif
}

/// Keeps the compiler from moving instructions across this place, and from merging branches that end with different
/// numbers.
template <int Branch = 0>
PAGODA_HIP_FUNCTION void keep_order() {
#if defined(__HIP_DEVICE_COMPILE__)
  if constexpr (Branch != 0) asm volatile("; branch %0" : : "n"(Branch));
  __builtin_amdgcn_sched_barrier(0);
#endif
}

}  // namespace pagoda::detail::hip
