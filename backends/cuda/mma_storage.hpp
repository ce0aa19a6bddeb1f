// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/primitives.hpp"

#include <pagoda/types.hpp>

#include <cuda_fp8.h>

#include <cstdint>

/// How rows of each storage type become operands of mma.m16n8k16. Matrices of 8 rows times 16 bytes come from shared
/// memory in one way for all types (cuda::load_matrices); what a lane gets of a row is 4 bytes, whatever they hold. The
/// dims of a product of keys and queries may be in any order if it is the same for both, and the dims of the output may
/// come out in any order and be put right at the end, so no storage type is ever shuffled between lanes.
///
///  dims            of a 16-byte chunk of a row
///  keys(w, b)      a word of a key row: operands b of so many steps of 16 dims
///  values(w, w8, a) words of the same chunk of tokens 0 .. 7 and 8 .. 15: operands a of so many outputs of 16 dims
///  queries(row, swizzle, i, c, q) what meets chunk i of the keys in lane c of a row, from a row of Operands
///  dim(o, row, half) which dim of the row output o holds: rows `row` (half 0) and `row + 8` of its operand a
namespace pagoda::detail {

/// fp16 and bf16 as they are: one chunk is half a step.
template <class T>
struct MmaStorage {
  using Operand              = T;
  static constexpr int dims  = 8;
  static constexpr int steps = 0;  ///< of a chunk: see MmaFragment
  KOKKOS_FUNCTION static constexpr int dim(int o, int row, int half) { return 16 * o + row + 8 * half; }
};

/// Of 8 bits: `pairs(x)` makes two numbers of the lower half of a word, and of the upper.
template <class Convert>
struct MmaBytes {
  using Operand              = half_t;
  static constexpr int dims  = 16;
  static constexpr int steps = 1;
  KOKKOS_FUNCTION static constexpr int dim(int o, int row, int half) { return 16 * o + 2 * row + half; }

  /// Lane c of a row holds dims 4 c .. 4 c + 3.
  KOKKOS_FUNCTION static void keys(std::uint32_t w, std::uint32_t (&b)[steps][2]) { Convert::pairs(w, b[0]); }
  KOKKOS_FUNCTION static void queries(const char* row, int chunk_swizzle, int i, int c, std::uint32_t (&q)[2 * steps]) {
    const int chunk = 2 * i + (c >> 1);
    const std::uint32_t* from =
        reinterpret_cast<const std::uint32_t*>(row + ((chunk ^ chunk_swizzle) << 4)) + 2 * (c & 1);
    q[0] = from[0], q[1] = from[1];
  }
  /// The word holds two dims of one token, and the same of the next.
  KOKKOS_FUNCTION static void values(std::uint32_t w, std::uint32_t w8, std::uint32_t (&a)[steps][4]) {
    std::uint32_t low[2], high[2];
    Convert::pairs(cuda::permute(w, 0, 0x3120), low);
    Convert::pairs(cuda::permute(w8, 0, 0x3120), high);
    a[0][0] = low[0], a[0][1] = low[1], a[0][2] = high[0], a[0][3] = high[1];
  }
};

struct E4m3Pairs {
  KOKKOS_FUNCTION static void pairs([[maybe_unused]] std::uint32_t w, [[maybe_unused]] std::uint32_t (&x)[2]) {
#if defined(__CUDA_ARCH__)
    const __half2_raw low  = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(w & 0xffff), __NV_E4M3);
    const __half2_raw high = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(w >> 16), __NV_E4M3);
    x[0]                   = low.x | static_cast<std::uint32_t>(low.y) << 16;
    x[1]                   = high.x | static_cast<std::uint32_t>(high.y) << 16;
#endif
  }
};

/// The upper half of an fp16.
struct E5m2Pairs {
  KOKKOS_FUNCTION static void pairs(std::uint32_t w, std::uint32_t (&x)[2]) {
    x[0] = cuda::permute(w, 0, 0x1404), x[1] = cuda::permute(w, 0, 0x3424);
  }
};

/// Behind the byte 0x64, n + 128 is the fp16 1024 + n + 128.
struct Int8Pairs {
  KOKKOS_FUNCTION static void pairs(std::uint32_t w, std::uint32_t (&x)[2]) {
    const std::uint32_t n = w ^ 0x80808080u;
    x[0]                  = cuda::subtract_halves(cuda::permute(n, 0x64646464u, 0x4140), 0x64806480u);
    x[1]                  = cuda::subtract_halves(cuda::permute(n, 0x64646464u, 0x4342), 0x64806480u);
  }
};

template <>
struct MmaStorage<fp8_e4m3_t> : MmaBytes<E4m3Pairs> {};
template <>
struct MmaStorage<fp8_e5m2_t> : MmaBytes<E5m2Pairs> {};
template <>
struct MmaStorage<std::int8_t> : MmaBytes<Int8Pairs> {};

/// Of 4 bits: of the eight in a word, the n-th and the one four behind it make a pair.
template <>
struct MmaStorage<int4x2_t> {
  using Operand              = half_t;
  static constexpr int dims  = 32;
  static constexpr int steps = 2;
  KOKKOS_FUNCTION static constexpr int dim(int o, int row, int half) {
    return 16 * (o & ~1) + 4 * row + 2 * (o & 1) + half;
  }
  /// n + 8 in the lowest bits of 1024 is the fp16 1024 + n + 8.
  KOKKOS_FUNCTION static std::uint32_t pair(std::uint32_t w, int n) {
    return cuda::subtract_halves(((w >> 4 * n) & 0x000f000fu) ^ 0x64086408u, 0x64086408u);
  }
  KOKKOS_FUNCTION static void keys(std::uint32_t w, std::uint32_t (&b)[steps][2]) {
    for (int s = 0; s < steps; ++s) b[s][0] = pair(w, 2 * s), b[s][1] = pair(w, 2 * s + 1);
  }
  KOKKOS_FUNCTION static void queries(const char* row, int chunk_swizzle, int i, int c, std::uint32_t (&q)[2 * steps]) {
    const auto* const from = reinterpret_cast<const std::uint32_t*>(row + (((4 * i + c) ^ chunk_swizzle) << 4));
    q[0] = cuda::permute(from[0], from[2], 0x5410), q[1] = cuda::permute(from[0], from[2], 0x7632);
    q[2] = cuda::permute(from[1], from[3], 0x5410), q[3] = cuda::permute(from[1], from[3], 0x7632);
  }
  KOKKOS_FUNCTION static void values(std::uint32_t w, std::uint32_t w8, std::uint32_t (&a)[steps][4]) {
    for (int s = 0; s < steps; ++s) {
      a[s][0] = pair(w, 2 * s), a[s][1] = pair(w, 2 * s + 1);
      a[s][2] = pair(w8, 2 * s), a[s][3] = pair(w8, 2 * s + 1);
    }
  }
};

}  // namespace pagoda::detail
