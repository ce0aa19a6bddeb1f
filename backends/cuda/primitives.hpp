// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/types.hpp>

#include <Kokkos_Core.hpp>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

/// Instructions that C++ has no word for, one function each. Outside device code they do nothing.
namespace pagoda::detail::cuda {

/// d += a b, a: 16 x 16, b: 16 x 8 (PTX ISA, mma.m16n8k16). T: half_t or bfloat16_t.
template <class T>
KOKKOS_INLINE_FUNCTION void mma([[maybe_unused]] float (&d)[4], [[maybe_unused]] std::uint32_t a0,
                                [[maybe_unused]] std::uint32_t a1, [[maybe_unused]] std::uint32_t a2,
                                [[maybe_unused]] std::uint32_t a3, [[maybe_unused]] std::uint32_t b0,
                                [[maybe_unused]] std::uint32_t b1) {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<T, half_t>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
#endif
}

/// A pointer into shared memory as the instructions below want it.
KOKKOS_INLINE_FUNCTION std::uint32_t shared_address([[maybe_unused]] const void* p) {
#if defined(__CUDA_ARCH__)
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
#else
  return 0;
#endif
}

/// Four 8 x 8 matrices of 16-bit elements from shared memory: lane i gives the address of row i % 8 of matrix i / 8,
/// and gets of each matrix the elements (i / 4, 2 (i % 4)) and the one behind it. Transposed: (2 (i % 4), i / 4) and
/// the one below it.
template <bool Transposed>
KOKKOS_INLINE_FUNCTION void load_matrices([[maybe_unused]] std::uint32_t* m, [[maybe_unused]] std::uint32_t at) {
#if defined(__CUDA_ARCH__)
  if constexpr (Transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(at)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(at)
                 : "memory");
  }
#endif
}

/// What is copied with this policy is the first to leave the second-level cache: it is read once.
KOKKOS_INLINE_FUNCTION std::uint64_t read_once_policy() {
  std::uint64_t policy = 0;
#if defined(__CUDA_ARCH__)
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
  return policy;
}

/// Begins to copy 16 bytes from global to shared memory, or to clear them there.
KOKKOS_INLINE_FUNCTION void copy_async([[maybe_unused]] std::uint32_t to, [[maybe_unused]] const char* from,
                                       [[maybe_unused]] std::uint64_t policy, [[maybe_unused]] bool clear = false) {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;"
               :
               : "r"(to), "l"(from), "r"(clear ? 0 : 16), "l"(policy)
               : "memory");
#endif
}

/// Closes a group of copies.
KOKKOS_INLINE_FUNCTION void commit_copies() {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/// Waits for all groups of this lane but the last N.
template <int N>
KOKKOS_INLINE_FUNCTION void wait_copies() {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

KOKKOS_INLINE_FUNCTION void sync_warp() {
#if defined(__CUDA_ARCH__)
  __syncwarp();
#endif
}

/// 2^x to about two units in the last place of a float; 2^-infinity is 0.
KOKKOS_INLINE_FUNCTION float exp2(float x) {
  float y = x;
#if defined(__CUDA_ARCH__)
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
#endif
  return y;
}

/// Two numbers as one operand word, the first in the lower half.
template <class T>
KOKKOS_INLINE_FUNCTION std::uint32_t pack([[maybe_unused]] float low, [[maybe_unused]] float high) {
  std::uint32_t word = 0;
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<T, half_t>) {
    const __half2 pair = __floats2half2_rn(low, high);
    word               = reinterpret_cast<const std::uint32_t&>(pair);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    word                      = reinterpret_cast<const std::uint32_t&>(pair);
  }
#endif
  return word;
}

/// Four bytes of the eight of low and high, chosen by the digits of `which`, the last digit for the lowest byte.
KOKKOS_INLINE_FUNCTION std::uint32_t permute([[maybe_unused]] std::uint32_t low, [[maybe_unused]] std::uint32_t high,
                                             [[maybe_unused]] std::uint32_t which) {
#if defined(__CUDA_ARCH__)
  return __byte_perm(low, high, which);
#else
  return 0;
#endif
}

/// Both fp16 halves of a word less those of another.
KOKKOS_INLINE_FUNCTION std::uint32_t subtract_halves([[maybe_unused]] std::uint32_t a,
                                                     [[maybe_unused]] std::uint32_t b) {
  std::uint32_t word = 0;
#if defined(__CUDA_ARCH__)
  asm("sub.f16x2 %0, %1, %2;" : "=r"(word) : "r"(a), "r"(b));
#endif
  return word;
}

/// Begins to copy 4 bytes from global to shared memory.
KOKKOS_INLINE_FUNCTION void copy_word_async([[maybe_unused]] std::uint32_t to, [[maybe_unused]] const void* from) {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" : : "r"(to), "l"(from) : "memory");
#endif
}

KOKKOS_INLINE_FUNCTION float log2(float x) {
  float y = x;
#if defined(__CUDA_ARCH__)
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
#endif
  return y;
}

/// The same number, but not to the compiler: what is worked out from it is worked out where it is needed, and takes no
/// registers elsewhere.
KOKKOS_INLINE_FUNCTION int fresh(int x) {
#if defined(__CUDA_ARCH__)
  asm volatile("" : "+r"(x));
#endif
  return x;
}

/// Waits for all lanes of the team, and orders its scratch.
KOKKOS_INLINE_FUNCTION void sync_team() {
#if defined(__CUDA_ARCH__)
  __syncthreads();
#endif
}

/// The same; whether any lane says so.
KOKKOS_INLINE_FUNCTION bool sync_team_or([[maybe_unused]] bool x) {
#if defined(__CUDA_ARCH__)
  return __syncthreads_or(x);
#else
  return x;
#endif
}

}  // namespace pagoda::detail::cuda
