// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/base/unroll.hpp"

#include <hip/hip_runtime.h>

#include <cstdint>

/// Matrix instructions of AMD GPUs, and the other instructions that the fragments use, in plain HIP.
namespace pagoda::detail::hip {

/// Always inlined: an object that a call gets by reference lies in scratch memory.
#define PAGODA_HIP_FUNCTION __host__ __device__ inline __attribute__((always_inline))

using Words2 = std::uint32_t __attribute__((ext_vector_type(2)));
using Words4 = std::uint32_t __attribute__((ext_vector_type(4)));
using Words8 = std::uint32_t __attribute__((ext_vector_type(8)));
using Float4 = float __attribute__((ext_vector_type(4)));
using Float8 = float __attribute__((ext_vector_type(8)));
template <int Count>
using Words = std::uint32_t __attribute__((ext_vector_type(Count)));

/// Type of the operands of a matrix instruction.
enum class MatrixType { fp16, bf16 };

/// CDNA 2 and 3. Of a product of 16 x 16 x 16, lane l holds elements 4 (l / 16) .. + 4 of row l % 16 of a and of column
/// l % 16 of b, and sums of rows 4 (l / 16) .. + 4 in column l % 16.
struct Cdna {
  static constexpr int lanes          = 64;
  static constexpr int operand_groups = 4;  ///< groups of 16 lanes that hold different elements of an operand
  using Operand                       = Words2;
  using Sums                          = Float4;

  /// The row of sum i of a lane of group l / 16.
  PAGODA_HIP_FUNCTION static constexpr int sum_row(int i, int group) { return 4 * group + i; }
  /// The token whose key is row `row` of operand a, so that sum i of a lane is that of token sums * group + i.
  PAGODA_HIP_FUNCTION static constexpr int token_of_row(int row) { return row; }

  /// sum + a b
  template <MatrixType Type>
  PAGODA_HIP_FUNCTION static Sums multiply([[maybe_unused]] Operand a, [[maybe_unused]] Operand b, Sums sum) {
#if defined(__gfx90a__) || defined(__gfx942__)
    if constexpr (Type == MatrixType::fp16) {
      using Halves = _Float16 __attribute__((ext_vector_type(4)));
      sum = __builtin_amdgcn_mfma_f32_16x16x16f16(__builtin_bit_cast(Halves, a), __builtin_bit_cast(Halves, b), sum, 0,
                                                  0, 0);
    } else {
      using Halves = short __attribute__((ext_vector_type(4)));
      sum = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(__builtin_bit_cast(Halves, a), __builtin_bit_cast(Halves, b), sum,
                                                      0, 0, 0);
    }
#endif
    return sum;
  }
  /// Operand b from the lane's own 16-bit numbers, which are in the layout of the sums.
  PAGODA_HIP_FUNCTION static Operand operand(Words2 own, int) { return own; }
};

/// RDNA 3 with waves of 32 lanes. Of a product of 16 x 16 x 16, lane l holds row l % 16 of a and column l % 16 of b
/// (lanes l and l + 16 the same), and sums of rows 2 i + l / 16 in column l % 16.
struct Rdna3 {
  static constexpr int lanes          = 32;
  static constexpr int operand_groups = 1;
  using Operand                       = Words8;
  using Sums                          = Float8;

  PAGODA_HIP_FUNCTION static constexpr int sum_row(int i, int group) { return 2 * i + group; }
  PAGODA_HIP_FUNCTION static constexpr int token_of_row(int row) { return row / 2 + row % 2 * 8; }

  template <MatrixType Type>
  PAGODA_HIP_FUNCTION static Sums multiply([[maybe_unused]] Operand a, [[maybe_unused]] Operand b, Sums sum) {
#if defined(__gfx1100__)
    if constexpr (Type == MatrixType::fp16) {
      using Halves = _Float16 __attribute__((ext_vector_type(16)));
      sum =
          __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(__builtin_bit_cast(Halves, a), __builtin_bit_cast(Halves, b), sum);
    } else {
      using Halves = short __attribute__((ext_vector_type(16)));
      sum = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(__builtin_bit_cast(Halves, a), __builtin_bit_cast(Halves, b),
                                                        sum);
    }
#endif
    return sum;
  }
  /// The lower group has tokens 0 .. 7, the upper one 8 .. 15.
  PAGODA_HIP_FUNCTION static Operand operand([[maybe_unused]] Words4 own, [[maybe_unused]] int group) {
    Operand all{};
#if defined(__gfx1100__)
    PAGODA_UNROLL_ALL
    for (int w = 0; w < 4; ++w) {
      const std::uint32_t other = __builtin_amdgcn_permlanex16(own[w], own[w], 0x76543210u, 0xfedcba98u, false, false);
      all[w] = group == 0 ? own[w] : other, all[4 + w] = group == 0 ? other : own[w];
    }
#endif
    return all;
  }
};

/// Loads from global memory. The address space is named because the compiler does not always find it, and flat loads
/// also wait for LDS.
template <class X>
PAGODA_HIP_FUNCTION X load_global([[maybe_unused]] const char* from) {
#if defined(__HIP_DEVICE_COMPILE__)
  using Global = const X __attribute__((address_space(1)));
  return *(Global*)(from);
#else
  return X{};
#endif
}

/// Four bytes of two words. Each byte of `bytes` says which: 0 .. 3 of low, 4 .. 7 of high, or 12 for a zero.
PAGODA_HIP_FUNCTION std::uint32_t permute([[maybe_unused]] std::uint32_t high, [[maybe_unused]] std::uint32_t low,
                                          [[maybe_unused]] std::uint32_t bytes) {
#if defined(__HIP_DEVICE_COMPILE__)
  return __builtin_amdgcn_perm(high, low, bytes);
#else
  return 0;
#endif
}

/// The lower (Half 0) or the upper (Half 1) 16 bits of two words, those of `low` in the lower half.
template <int Half>
PAGODA_HIP_FUNCTION std::uint32_t pair_halves(std::uint32_t low, std::uint32_t high) {
  return permute(high, low, Half == 0 ? 0x05040100u : 0x07060302u);
}

/// Two floats as fp16 or bf16, rounded to nearest. No GPU here has an instruction that converts to bf16.
template <MatrixType Type>
PAGODA_HIP_FUNCTION std::uint32_t pack(float low, float high) {
  if constexpr (Type == MatrixType::fp16) {
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

/// log2(x)
PAGODA_HIP_FUNCTION float log2([[maybe_unused]] float x) {
#if defined(__HIP_DEVICE_COMPILE__)
  return __builtin_amdgcn_logf(x);
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

/// x, which is nearly always true.
PAGODA_HIP_FUNCTION bool likely(bool x) { return __builtin_expect_with_probability(x, true, 0.9999); }

/// Hides how x was computed, so that the compiler does not merge that with what uses x.
PAGODA_HIP_FUNCTION std::uint32_t opaque(std::uint32_t x) {
#if defined(__HIP_DEVICE_COMPILE__)
  asm("" : "+v"(x));
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
