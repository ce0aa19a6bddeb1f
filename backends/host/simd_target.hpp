// SPDX-License-Identifier: Apache-2.0
#pragma once

#if defined(__x86_64__) && !defined(__HIP_DEVICE_COMPILE__)
#include <immintrin.h>
#endif

/// The instruction set of the SIMD code in this translation unit. CMake compiles the code once for each (HostIsa); the
/// level is the HostIsa's number. Level 0, `plain`, has what the compiler's flags allow.
///
/// The code of a level lies in a namespace of the level, between PAGODA_ISA_BEGIN and PAGODA_ISA_END, which give its
/// functions the target attribute. Functions of other headers keep the compiler's flags, so a program never runs an
/// inline function that another translation unit has compiled for a newer processor: such headers are included before.
/// A lambda needs PAGODA_ISA_CODE, because clang gives it no attribute otherwise.
#if !defined(PAGODA_ISA_LEVEL)
#define PAGODA_ISA_LEVEL 0
#endif

#if PAGODA_ISA_LEVEL == 0
#define PAGODA_ISA plain
#define PAGODA_ISA_BEGIN
#define PAGODA_ISA_END
#define PAGODA_ISA_CODE
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define PAGODA_ISA_AVX2
#endif
#if defined(PAGODA_ISA_AVX2) && defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && \
    defined(__AVX512DQ__)
#define PAGODA_ISA_AVX512
#endif
#if defined(PAGODA_ISA_AVX512) && defined(__AVX512BF16__) && defined(__AVX512VNNI__)
#define PAGODA_ISA_PAIRS
#endif

#else

#if PAGODA_ISA_LEVEL == 1
#define PAGODA_ISA avx2
#define PAGODA_ISA_TARGET "avx2,fma,f16c"
#elif PAGODA_ISA_LEVEL == 2 || PAGODA_ISA_LEVEL == 4  // tile registers: amx_instructions.hpp
#if PAGODA_ISA_LEVEL == 2
#define PAGODA_ISA avx512
#else
#define PAGODA_ISA amx
#endif
#define PAGODA_ISA_TARGET "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq"
#elif PAGODA_ISA_LEVEL == 3
#define PAGODA_ISA avx512_bf16
#define PAGODA_ISA_TARGET "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vnni"
#endif
#define PAGODA_ISA_AVX2
#if PAGODA_ISA_LEVEL >= 2
#define PAGODA_ISA_AVX512
#endif
#if PAGODA_ISA_LEVEL == 3
#define PAGODA_ISA_PAIRS
#endif

#define PAGODA_ISA_PRAGMA(...) _Pragma(#__VA_ARGS__)
#define PAGODA_ISA_CODE __attribute__((target(PAGODA_ISA_TARGET)))
#if defined(__clang__)
#define PAGODA_ISA_PUSH(target_of) \
  PAGODA_ISA_PRAGMA(clang attribute push(__attribute__((target(target_of))), apply_to = function))
#define PAGODA_ISA_END _Pragma("clang attribute pop")
#else
#define PAGODA_ISA_PUSH(target_of) _Pragma("GCC push_options") PAGODA_ISA_PRAGMA(GCC target(target_of))
#define PAGODA_ISA_END _Pragma("GCC pop_options")
#endif
#define PAGODA_ISA_BEGIN PAGODA_ISA_PUSH(PAGODA_ISA_TARGET)

#endif

/// Bytes of a vector register, and how many there are.
namespace pagoda::detail::PAGODA_ISA {

#if defined(PAGODA_ISA_AVX512)
inline constexpr int simd_bytes = 64, simd_registers = 32;
#elif defined(PAGODA_ISA_AVX2)
inline constexpr int simd_bytes = 32, simd_registers = 16;
#elif defined(__aarch64__)
inline constexpr int simd_bytes = 16, simd_registers = 32;
#else
inline constexpr int simd_bytes = 16, simd_registers = 16;
#endif

}  // namespace pagoda::detail::PAGODA_ISA
