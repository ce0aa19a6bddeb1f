// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/ptx.cuh"

/// Matrix products by warpgroups of four warps, and related instructions. Only sm_90a has them: for any other
/// architecture, sm_90 included, the functions are empty.
namespace pagoda::ptx {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define PAGODA_SM90A 1
#endif

/// Descriptor of an operand in shared memory, as tensor maps with 128-byte swizzle write it: runs of 128 bytes of eight
/// rows (1 KiB), with a stride of `eights` bytes from eight rows to the next eight. Transposed operands, which are
/// summed over rows, also have a stride of `runs` bytes from one run of 64 elements to the next. In a cluster,
/// addresses have the block's rank in their upper bits, which are no part of a descriptor.
PAGODA_DEVICE std::uint64_t matrix_descriptor(std::uint32_t at, int eights, int runs = 16) {
  return static_cast<std::uint64_t>(at >> 4 & 0x3fff) | static_cast<std::uint64_t>(runs >> 4) << 16 |
         static_cast<std::uint64_t>(eights >> 4) << 32 | std::uint64_t(1) << 62;
}
/// Descriptor of the operand that begins `bytes` further on.
PAGODA_DEVICE std::uint64_t advance_descriptor(std::uint64_t descriptor, int bytes) {
  return descriptor + (bytes >> 4);
}
/// Hides the value from the compiler. Otherwise the compiler computes the descriptors of all products before a loop,
/// and runs out of registers.
PAGODA_DEVICE std::uint64_t opaque(std::uint64_t descriptor) {
  asm volatile("" : "+l"(descriptor));
  return descriptor;
}

/// Orders the warpgroup's writes to registers before products that read them.
PAGODA_DEVICE void wgmma_fence() {
#if PAGODA_SM90A
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
/// Makes the products started since the last commit one group.
PAGODA_DEVICE void wgmma_commit() {
#if PAGODA_SM90A
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
/// Waits for all groups but the last N.
template <int N>
PAGODA_DEVICE void wgmma_wait() {
#if PAGODA_SM90A
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
#endif
}
/// Keeps the compiler from moving uses of accumulators across this point, to where products still write them.
template <int N>
PAGODA_DEVICE void wgmma_fence_registers(float (&d)[N]) {
#pragma unroll
  for (float& x : d) asm volatile("" : "+f"(x)::"memory");
}

/// Sets the number of registers of each thread from here on. All four warps of a warpgroup must call it.
template <int N>
PAGODA_DEVICE void increase_registers() {
#if PAGODA_SM90A
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
#endif
}
template <int N>
PAGODA_DEVICE void decrease_registers() {
#if PAGODA_SM90A
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
#endif
}

// clang-format off
#define PAGODA_8(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define PAGODA_32(d, i) PAGODA_8(d, i), PAGODA_8(d, i + 8), PAGODA_8(d, i + 16), PAGODA_8(d, i + 24)
#define PAGODA_16(d, i) PAGODA_8(d, i), PAGODA_8(d, i + 8)
#define PAGODA_REGISTERS_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define PAGODA_REGISTERS_32 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define PAGODA_REGISTERS_64 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define PAGODA_WGMMA(n, registers, type, a, b, add, transposed)                                                     \
  "{.reg .pred p; setp.ne.b32 p, %" add ", 0; wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " {" registers "}, %" a ", %" b ", p, 1, 1, 0, " transposed ";}"
// clang-format on

/// Starts d = a b, or d += a b. a: 64 x 16; b: 16 x 64, each of its columns a row in shared memory. A lane has in
/// d[4 i] and d[4 i + 1] columns 8 i + 2 (lane % 4) and the next of row 16 warp + lane / 4, and in d[4 i + 2] and
/// d[4 i + 3] those of the row 8 below.
template <bool Bf16>
PAGODA_DEVICE void wgmma(float (&d)[32], std::uint64_t a, std::uint64_t b, bool add) {
#if PAGODA_SM90A
  if constexpr (Bf16) {
    asm volatile(PAGODA_WGMMA("64", PAGODA_REGISTERS_32, "bf16", "32", "33", "34", "0")
                 : PAGODA_32(d, 0)
                 : "l"(a), "l"(b), "r"(int(add)));
  } else {
    asm volatile(PAGODA_WGMMA("64", PAGODA_REGISTERS_32, "f16", "32", "33", "34", "0")
                 : PAGODA_32(d, 0)
                 : "l"(a), "l"(b), "r"(int(add)));
  }
#endif
}
/// The same with 32 columns.
template <bool Bf16>
PAGODA_DEVICE void wgmma(float (&d)[16], std::uint64_t a, std::uint64_t b, bool add) {
#if PAGODA_SM90A
  if constexpr (Bf16) {
    asm volatile(PAGODA_WGMMA("32", PAGODA_REGISTERS_16, "bf16", "16", "17", "18", "0")
                 : PAGODA_16(d, 0)
                 : "l"(a), "l"(b), "r"(int(add)));
  } else {
    asm volatile(PAGODA_WGMMA("32", PAGODA_REGISTERS_16, "f16", "16", "17", "18", "0")
                 : PAGODA_16(d, 0)
                 : "l"(a), "l"(b), "r"(int(add)));
  }
#endif
}
/// The same with 128 columns, and b transposed: each of its 16 rows is a row in shared memory.
template <bool Bf16>
PAGODA_DEVICE void wgmma_transposed_b(float (&d)[64], std::uint64_t a, std::uint64_t b, bool add) {
#if PAGODA_SM90A
  if constexpr (Bf16) {
    asm volatile(PAGODA_WGMMA("128", PAGODA_REGISTERS_64, "bf16", "64", "65", "66", "1")
                 : PAGODA_32(d, 0), PAGODA_32(d, 32)
                 : "l"(a), "l"(b), "r"(int(add)));
  } else {
    asm volatile(PAGODA_WGMMA("128", PAGODA_REGISTERS_64, "f16", "64", "65", "66", "1")
                 : PAGODA_32(d, 0), PAGODA_32(d, 32)
                 : "l"(a), "l"(b), "r"(int(add)));
  }
#endif
}

/// The same with a in registers, in the layout of accumulators, and with as many columns as d has room for.
// clang-format off
#define PAGODA_WGMMA_REGISTER_A(n, registers, type, a, b, add, transposed) \
  "{.reg .pred p; setp.ne.b32 p, %" add ", 0; wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " {" registers "}, {" a "}, %" b ", p, 1, 1, " transposed ";}"
// clang-format on
template <bool Bf16>
PAGODA_DEVICE void wgmma_register_a(float (&d)[64], const std::uint32_t* a, std::uint64_t b, bool add) {
#if PAGODA_SM90A
  if constexpr (Bf16) {
    asm volatile(PAGODA_WGMMA_REGISTER_A("128", PAGODA_REGISTERS_64, "bf16", "%64, %65, %66, %67", "68", "69", "1")
                 : PAGODA_32(d, 0), PAGODA_32(d, 32)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(add)));
  } else {
    asm volatile(PAGODA_WGMMA_REGISTER_A("128", PAGODA_REGISTERS_64, "f16", "%64, %65, %66, %67", "68", "69", "1")
                 : PAGODA_32(d, 0), PAGODA_32(d, 32)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(add)));
  }
#endif
}
/// TransposedB: as in wgmma_transposed_b, or as in wgmma.
template <bool Bf16, bool TransposedB = true>
PAGODA_DEVICE void wgmma_register_a(float (&d)[32], const std::uint32_t* a, std::uint64_t b, bool add) {
#if PAGODA_SM90A
  if constexpr (Bf16) {
    asm volatile(PAGODA_WGMMA_REGISTER_A("64", PAGODA_REGISTERS_32, "bf16", "%32, %33, %34, %35", "36", "37", "%38")
                 : PAGODA_32(d, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(add)), "n"(int(TransposedB)));
  } else {
    asm volatile(PAGODA_WGMMA_REGISTER_A("64", PAGODA_REGISTERS_32, "f16", "%32, %33, %34, %35", "36", "37", "%38")
                 : PAGODA_32(d, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(add)), "n"(int(TransposedB)));
  }
#endif
}

#undef PAGODA_WGMMA_REGISTER_A
#undef PAGODA_WGMMA
#undef PAGODA_REGISTERS_64
#undef PAGODA_REGISTERS_32
#undef PAGODA_REGISTERS_16
#undef PAGODA_32
#undef PAGODA_16
#undef PAGODA_8

/// Stores four 8 x 8 matrices of 16-bit elements to shared memory. Lanes hold them as load_matrices returns them.
PAGODA_DEVICE void store_matrices(std::uint32_t at, const std::uint32_t* m) {
#if PAGODA_SM90A
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(m[0]), "r"(m[1]),
               "r"(m[2]), "r"(m[3])
               : "memory");
#endif
}

}  // namespace pagoda::ptx
