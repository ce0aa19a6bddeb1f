// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/ptx.cuh"
#include "src/base/unroll.hpp"

#include <pagoda/types.hpp>

#include <Kokkos_Core.hpp>

#include <cstdint>
#include <type_traits>

/// The instructions of ptx.cuh for functions of Kokkos kernels. These are compiled for the host too, where the
/// instructions do nothing. T: half_t or bfloat16_t.
namespace pagoda::detail::cuda {

template <class T>
inline constexpr bool is_bf16 = std::is_same_v<T, bfloat16_t>;

/// d += a b, a: 16 x 16, b: 16 x 8 (PTX ISA, mma.m16n8k16).
template <class T>
KOKKOS_INLINE_FUNCTION void mma([[maybe_unused]] float (&d)[4], [[maybe_unused]] std::uint32_t a0,
                                [[maybe_unused]] std::uint32_t a1, [[maybe_unused]] std::uint32_t a2,
                                [[maybe_unused]] std::uint32_t a3, [[maybe_unused]] std::uint32_t b0,
                                [[maybe_unused]] std::uint32_t b1) {
  KOKKOS_IF_ON_DEVICE((ptx::mma<is_bf16<T>>(d, a0, a1, a2, a3, b0, b1);))
}

/// d += a b, a: 8 x 4, b: 4 x 8, in fp64 (PTX ISA, mma.m8n8k4).
KOKKOS_INLINE_FUNCTION void mma([[maybe_unused]] double (&d)[2], [[maybe_unused]] double a, [[maybe_unused]] double b) {
  KOKKOS_IF_ON_DEVICE((ptx::mma(d, a, b);))
}

/// Address of shared memory, as the instructions below take it.
KOKKOS_INLINE_FUNCTION std::uint32_t shared_address([[maybe_unused]] const void* p) {
  KOKKOS_IF_ON_DEVICE((return ptx::shared_address(p);))
  KOKKOS_IF_ON_HOST((return 0;))
}

template <bool Transposed>
KOKKOS_INLINE_FUNCTION void load_matrices([[maybe_unused]] std::uint32_t* m, [[maybe_unused]] std::uint32_t at) {
  KOKKOS_IF_ON_DEVICE((ptx::load_matrices<Transposed>(m, at);))
}

/// On sm_90 the constant that the instruction returns (as in CUTLASS). The compiler knows it, so it need not be moved
/// from a lane's registers for every copy.
KOKKOS_INLINE_FUNCTION std::uint64_t read_once_policy() {
#if defined(__CUDA_ARCH__)
#if __CUDA_ARCH__ == 900
  return 0x12f0000000000000u;
#else
  return ptx::read_once_policy();
#endif
#else
  return 0;
#endif
}

/// Discards lines of 128 bytes that lie within `bytes` bytes from `begin` on: number `first`, counted from 0, and every
/// step-th after it.
KOKKOS_INLINE_FUNCTION void discard_lines([[maybe_unused]] void* begin, [[maybe_unused]] int bytes,
                                          [[maybe_unused]] int first, [[maybe_unused]] int step) {
#if defined(__CUDA_ARCH__)
  char* const from = static_cast<char*>(begin) + (-reinterpret_cast<std::uintptr_t>(begin) & 127);
  char* const end  = static_cast<char*>(begin) + bytes - 127;
  PAGODA_UNROLL(1)
  for (char* line = from + 128 * first; line < end; line += 128 * step) ptx::discard_line(line);
#endif
}

/// Starts to copy 16 bytes from global to shared memory, or to clear them there.
KOKKOS_INLINE_FUNCTION void copy_async([[maybe_unused]] std::uint32_t to, [[maybe_unused]] const char* from,
                                       [[maybe_unused]] std::uint64_t policy, [[maybe_unused]] bool clear = false) {
  KOKKOS_IF_ON_DEVICE((ptx::copy_prefix_async(to, from, clear ? 0 : 16, policy);))
}

/// The same where `copies`, without a branch.
KOKKOS_INLINE_FUNCTION void copy_async_if([[maybe_unused]] bool copies, [[maybe_unused]] std::uint32_t to,
                                          [[maybe_unused]] const char* from, [[maybe_unused]] std::uint64_t policy,
                                          [[maybe_unused]] bool clear) {
#if defined(__CUDA_ARCH__)
  asm volatile(
      "{.reg .pred p; setp.ne.s32 p, %0, 0; @p cp.async.cg.shared.global.L2::cache_hint [%1], [%2], 16, %3, %4;}" ::"r"(
          static_cast<int>(copies)),
      "r"(to), "l"(from), "r"(clear ? 0 : 16), "l"(policy)
      : "memory");
#endif
}

/// Starts to copy the first `bytes` of 16 bytes, 0 to 16. The others become 0 and are not read. `from` is a multiple of
/// 16 all the same.
KOKKOS_INLINE_FUNCTION void copy_prefix_async([[maybe_unused]] std::uint32_t to, [[maybe_unused]] const char* from,
                                              [[maybe_unused]] int bytes, [[maybe_unused]] std::uint64_t policy) {
  KOKKOS_IF_ON_DEVICE((ptx::copy_prefix_async(to, from, bytes, policy);))
}

/// Starts to copy 4 bytes from global to shared memory, or to clear them there.
KOKKOS_INLINE_FUNCTION void copy_word_or_clear_async([[maybe_unused]] std::uint32_t to,
                                                     [[maybe_unused]] const char* from,
                                                     [[maybe_unused]] std::uint64_t policy,
                                                     [[maybe_unused]] bool clear) {
  KOKKOS_IF_ON_DEVICE((ptx::copy_word_or_clear_async(to, from, policy, clear);))
}

/// Starts to copy 4 bytes from global to shared memory.
KOKKOS_INLINE_FUNCTION void copy_word_async([[maybe_unused]] std::uint32_t to, [[maybe_unused]] const void* from) {
  KOKKOS_IF_ON_DEVICE((ptx::copy_word_async(to, from);))
}

/// Starts to copy 4 bytes from global to shared memory, or to clear them there.
KOKKOS_INLINE_FUNCTION void copy_word_async([[maybe_unused]] std::uint32_t to, [[maybe_unused]] const char* from,
                                            [[maybe_unused]] bool clear) {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(clear ? 0 : 4) : "memory");
#endif
}

/// Makes the copies since the last commit one group.
KOKKOS_INLINE_FUNCTION void commit_copies() { KOKKOS_IF_ON_DEVICE((ptx::commit_copies();)) }

/// Waits for all groups of copies of this lane but the last N.
template <int N>
KOKKOS_INLINE_FUNCTION void wait_copies() {
  KOKKOS_IF_ON_DEVICE((ptx::wait_copies<N>();))
}

KOKKOS_INLINE_FUNCTION void sync_warp() { KOKKOS_IF_ON_DEVICE((__syncwarp();)) }

/// 2^x to about two units in the last place of a float; 2^-infinity is 0.
KOKKOS_INLINE_FUNCTION float exp2(float x) {
  KOKKOS_IF_ON_DEVICE((return ptx::exp2_fast(x);))
  KOKKOS_IF_ON_HOST((return x;))
}
KOKKOS_INLINE_FUNCTION float log2(float x) {
  KOKKOS_IF_ON_DEVICE((return ptx::log2_fast(x);))
  KOKKOS_IF_ON_HOST((return x;))
}

/// Packs two numbers into one operand word, the first into the lower half.
template <class T>
KOKKOS_INLINE_FUNCTION std::uint32_t pack([[maybe_unused]] float low, [[maybe_unused]] float high) {
  KOKKOS_IF_ON_DEVICE((return ptx::pack<is_bf16<T>>(low, high);))
  KOKKOS_IF_ON_HOST((return 0;))
}

/// Unpacks an operand word.
template <class T>
KOKKOS_INLINE_FUNCTION void unpack([[maybe_unused]] std::uint32_t word, float& low, float& high) {
  low = high = 0;
  KOKKOS_IF_ON_DEVICE((const float2 both = ptx::unpack<is_bf16<T>>(word); low = both.x; high = both.y;))
}

/// Bytes `first` .. `first` + 4 of the eight of low and high, 0 <= first < 4.
KOKKOS_INLINE_FUNCTION std::uint32_t bytes_from([[maybe_unused]] std::uint32_t low, [[maybe_unused]] std::uint32_t high,
                                                [[maybe_unused]] int first) {
#if defined(__CUDA_ARCH__)
  return __funnelshift_r(low, high, 8 * first);
#else
  return 0;
#endif
}

/// Chooses four of the eight bytes of low and high by the digits of `which`; the last digit is for the lowest byte.
KOKKOS_INLINE_FUNCTION std::uint32_t permute([[maybe_unused]] std::uint32_t low, [[maybe_unused]] std::uint32_t high,
                                             [[maybe_unused]] std::uint32_t which) {
#if defined(__CUDA_ARCH__)
  return __byte_perm(low, high, which);
#else
  return 0;
#endif
}

/// a - b for both fp16 halves.
KOKKOS_INLINE_FUNCTION std::uint32_t subtract_halves([[maybe_unused]] std::uint32_t a,
                                                     [[maybe_unused]] std::uint32_t b) {
  std::uint32_t word = 0;
#if defined(__CUDA_ARCH__)
  asm("sub.f16x2 %0, %1, %2;" : "=r"(word) : "r"(a), "r"(b));
#endif
  return word;
}

/// a b + c for both fp16 halves.
KOKKOS_INLINE_FUNCTION std::uint32_t multiply_add_halves([[maybe_unused]] std::uint32_t a,
                                                         [[maybe_unused]] std::uint32_t b,
                                                         [[maybe_unused]] std::uint32_t c) {
  std::uint32_t word = 0;
#if defined(__CUDA_ARCH__)
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(word) : "r"(a), "r"(b), "r"(c));
#endif
  return word;
}

/// The products of both halves.
template <class T>
KOKKOS_INLINE_FUNCTION std::uint32_t multiply_pairs([[maybe_unused]] std::uint32_t a,
                                                    [[maybe_unused]] std::uint32_t b) {
  std::uint32_t word = 0;
#if defined(__CUDA_ARCH__)
  if constexpr (is_bf16<T>) {
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(word) : "r"(a), "r"(b), "r"(0x80008000u));
  } else {
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(word) : "r"(a), "r"(b), "r"(0x80008000u));
  }
#endif
  return word;
}

/// The lower (Half 0) or the upper (Half 1) 16 bits of a word in both halves. An operand of fp16 arithmetic takes it
/// for free.
template <int Half>
KOKKOS_INLINE_FUNCTION std::uint32_t both_halves([[maybe_unused]] std::uint32_t word) {
  std::uint32_t x = 0;
#if defined(__CUDA_ARCH__)
  if constexpr (Half == 0) {
    asm("{.reg .b16 low, high; mov.b32 {low, high}, %1; mov.b32 %0, {low, low};}" : "=r"(x) : "r"(word));
  } else {
    asm("{.reg .b16 low, high; mov.b32 {low, high}, %1; mov.b32 %0, {high, high};}" : "=r"(x) : "r"(word));
  }
#endif
  return x;
}

/// sum + 0 x word, for both 16-bit halves: stays 0 (of either sign) until a half of a word is infinite or NaN.
template <class T>
KOKKOS_INLINE_FUNCTION std::uint32_t add_zero_times([[maybe_unused]] std::uint32_t word, std::uint32_t sum) {
#if defined(__CUDA_ARCH__)
  if constexpr (is_bf16<T>) {
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(word), "r"(0), "r"(sum));
  } else {
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(word), "r"(0), "r"(sum));
  }
#endif
  return sum;
}

/// Whether x is true in any lane of the warp.
KOKKOS_INLINE_FUNCTION bool any_lane([[maybe_unused]] bool x) {
#if defined(__CUDA_ARCH__)
  return __any_sync(~0u, x);
#else
  return x;
#endif
}

/// The smallest and the largest x of the warp's lanes.
KOKKOS_INLINE_FUNCTION int min_of_lanes([[maybe_unused]] int x) {
  KOKKOS_IF_ON_DEVICE((return __reduce_min_sync(~0u, x);))
  KOKKOS_IF_ON_HOST((return x;))
}
KOKKOS_INLINE_FUNCTION int max_of_lanes([[maybe_unused]] int x) {
  KOKKOS_IF_ON_DEVICE((return __reduce_max_sync(~0u, x);))
  KOKKOS_IF_ON_HOST((return x;))
}

/// The larger one of each pair of halves, as integers without sign.
KOKKOS_INLINE_FUNCTION std::uint32_t max_of_halves([[maybe_unused]] std::uint32_t a, [[maybe_unused]] std::uint32_t b) {
  KOKKOS_IF_ON_DEVICE((return __vmaxu2(a, b);))
  KOKKOS_IF_ON_HOST((return a;))
}

/// The value of x in another lane of the warp.
KOKKOS_INLINE_FUNCTION std::uint32_t from_lane([[maybe_unused]] std::uint32_t x, [[maybe_unused]] int lane) {
#if defined(__CUDA_ARCH__)
  return __shfl_sync(~0u, x, lane);
#else
  return x;
#endif
}
KOKKOS_INLINE_FUNCTION int from_lane([[maybe_unused]] int x, [[maybe_unused]] int lane) {
#if defined(__CUDA_ARCH__)
  return __shfl_sync(~0u, x, lane);
#else
  return x;
#endif
}
KOKKOS_INLINE_FUNCTION std::uint64_t from_lane([[maybe_unused]] std::uint64_t x, [[maybe_unused]] int lane) {
#if defined(__CUDA_ARCH__)
  return __shfl_sync(~0u, x, lane);
#else
  return x;
#endif
}

/// A mask of 16-bit halves: all bits where that of a word of probabilities is not hidden_probability.
KOKKOS_INLINE_FUNCTION std::uint32_t visible_halves([[maybe_unused]] std::uint32_t p) {
#if defined(__CUDA_ARCH__)
  return __vcmpne2(p, 0x80008000u);
#else
  return 0;
#endif
}
KOKKOS_INLINE_FUNCTION bool is_hidden([[maybe_unused]] float p) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(p) == 0x80000000u;
#else
  return false;
#endif
}

/// Loads 16 bytes of shared memory as four words.
KOKKOS_INLINE_FUNCTION void load_shared([[maybe_unused]] std::uint32_t (&words)[4], [[maybe_unused]] std::uint32_t at) {
#if defined(__CUDA_ARCH__)
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(at)
               : "memory");
#endif
}
/// Loads 16 bytes of shared memory as two numbers.
KOKKOS_INLINE_FUNCTION void load_shared([[maybe_unused]] double (&x)[2], [[maybe_unused]] std::uint32_t at) {
#if defined(__CUDA_ARCH__)
  asm volatile("ld.shared.v2.f64 {%0, %1}, [%2];" : "=d"(x[0]), "=d"(x[1]) : "r"(at) : "memory");
#endif
}
KOKKOS_INLINE_FUNCTION void store_shared([[maybe_unused]] std::uint32_t at,
                                         [[maybe_unused]] const std::uint32_t (&words)[4]) {
  KOKKOS_IF_ON_DEVICE((ptx::store_shared(at, uint4{words[0], words[1], words[2], words[3]});))
}

/// Stores N words, an even number, to scratch that is aligned to 16 bytes, or to 8 where N is not a multiple of 4.
template <int N>
KOKKOS_INLINE_FUNCTION void store_words(char* to, const std::uint32_t (&x)[N]) {
  for (int i = 0; i < N; i += 4) {
    if constexpr (N % 4 == 0) {
      *reinterpret_cast<uint4*>(to + 4 * i) = uint4{x[i], x[i + 1], x[i + 2], x[i + 3]};
    } else {
      *reinterpret_cast<uint2*>(to + 4 * i) = uint2{x[i], x[i + 1]};
    }
  }
}
/// Loads N words that store_words stored.
template <int N>
KOKKOS_INLINE_FUNCTION void load_words(std::uint32_t (&x)[N], const char* from) {
  for (int i = 0; i < N; i += 4) {
    if constexpr (N % 4 == 0) {
      const uint4 w = *reinterpret_cast<const uint4*>(from + 4 * i);
      x[i] = w.x, x[i + 1] = w.y, x[i + 2] = w.z, x[i + 3] = w.w;
    } else {
      const uint2 w = *reinterpret_cast<const uint2*>(from + 4 * i);
      x[i] = w.x, x[i + 1] = w.y;
    }
  }
}

/// Transposes an 8 x 8 matrix of 16-bit elements. Lane i holds element (i / 4, 2 (i % 4)) and the one to its right.
KOKKOS_INLINE_FUNCTION std::uint32_t transpose([[maybe_unused]] std::uint32_t word) {
  std::uint32_t x = 0;
#if defined(__CUDA_ARCH__)
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(x) : "r"(word));
#endif
  return x;
}

/// (word & Mask) ^ flipped in one instruction; the compiler uses two.
template <std::uint32_t Mask>
KOKKOS_INLINE_FUNCTION std::uint32_t masked_xor([[maybe_unused]] std::uint32_t word,
                                                [[maybe_unused]] std::uint32_t flipped) {
  std::uint32_t x = 0;
#if defined(__CUDA_ARCH__)
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(x) : "r"(word), "n"(Mask), "r"(flipped));
#endif
  return x;
}

/// Hides the value from the compiler, which then computes what depends on it where it is needed, and uses no registers
/// for it elsewhere.
template <class T>
KOKKOS_INLINE_FUNCTION T opaque(T x) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(T) == 8) {
    asm volatile("" : "+l"(x));
  } else {
    asm volatile("" : "+r"(x));
  }
#endif
  return x;
}

/// Waits for all lanes of the team, and orders their accesses to scratch.
KOKKOS_INLINE_FUNCTION void sync_team() {
#if defined(__CUDA_ARCH__)
  __syncthreads();
#endif
}

/// Like sync_team. Returns whether x is true in any lane.
KOKKOS_INLINE_FUNCTION bool sync_team_or([[maybe_unused]] bool x) {
#if defined(__CUDA_ARCH__)
  return __syncthreads_or(x);
#else
  return x;
#endif
}

}  // namespace pagoda::detail::cuda
