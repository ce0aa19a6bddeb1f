// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

/// PTX instructions without a CUDA C++ function, one function each. Device code only, without Kokkos.
namespace pagoda::ptx {

#define PAGODA_DEVICE __device__ __forceinline__
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define PAGODA_SM90 1
#endif

PAGODA_DEVICE std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

/// d += a b, a: 16 x 16, b: 16 x 8.
template <bool Bf16>
PAGODA_DEVICE void mma(float (&d)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2, std::uint32_t a3,
                       std::uint32_t b0, std::uint32_t b1) {
  if constexpr (Bf16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
}

/// d += a b, a: 8 x 4, b: 4 x 8, in fp64.
PAGODA_DEVICE void mma(double (&d)[2], double a, double b) {
  asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
               : "+d"(d[0]), "+d"(d[1])
               : "d"(a), "d"(b));
}

/// d += a b, a: 16 x 8, b: 8 x 8, in fp16.
PAGODA_DEVICE void mma_k8(float (&d)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t b0) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a0), "r"(a1), "r"(b0));
}

/// d += a b, a: 16 x 32, b: 32 x 8, integers of 8 bits with sign.
PAGODA_DEVICE void mma_s8(int (&d)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2, std::uint32_t a3,
                          std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/// Waits until `Threads` threads of the block have arrived at barrier `Barrier`. All of them must execute the same
/// instruction.
template <int Barrier, int Threads>
PAGODA_DEVICE void sync_threads() {
  asm volatile("bar.sync %0, %1;" ::"n"(Barrier), "n"(Threads) : "memory");
}
/// The same where warps arrive from different places in the code.
template <int Barrier, int Threads>
PAGODA_DEVICE void sync_threads_from_anywhere() {
  asm volatile("barrier.sync %0, %1;" ::"n"(Barrier), "n"(Threads) : "memory");
}

/// Transposes an 8 x 8 matrix of 16-bit elements. Lane i holds element (i / 4, 2 (i % 4)) and the one to its right.
PAGODA_DEVICE std::uint32_t transpose(std::uint32_t word) {
  std::uint32_t x;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(x) : "r"(word));
  return x;
}

/// (word & Mask) ^ flipped in one instruction; the compiler uses two.
template <std::uint32_t Mask>
PAGODA_DEVICE std::uint32_t masked_xor(std::uint32_t word, std::uint32_t flipped) {
  std::uint32_t x;
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(x) : "r"(word), "n"(Mask), "r"(flipped));
  return x;
}

/// Hides a value from the compiler, which then keeps it in a register instead of computing it anew.
PAGODA_DEVICE int opaque(int x) {
  asm volatile("" : "+r"(x));
  return x;
}
PAGODA_DEVICE const char* opaque(const char* x) {
  asm volatile("" : "+l"(x));
  return x;
}
/// x, which no later stage of the compiler knows either: in every lane, one of the two masks has each bit.
PAGODA_DEVICE std::uint32_t unknown(std::uint32_t x) {
  std::uint32_t le, gt;
  asm volatile("mov.u32 %0, %%lanemask_le;" : "=r"(le));
  asm volatile("mov.u32 %0, %%lanemask_gt;" : "=r"(gt));
  return (le | gt) & x;
}
/// base + n * stride
PAGODA_DEVICE const char* advance(const char* base, std::uint32_t n, std::uint32_t stride) {
  const char* x;
  asm("mad.wide.u32 %0, %1, %2, %3;" : "=l"(x) : "r"(n), "r"(stride), "l"(base));
  return x;
}

/// Loads four 8 x 8 matrices of 16-bit elements from shared memory. Lane i passes the address of row i % 8 of matrix
/// i / 8, and gets element (i / 4, 2 (i % 4)) of each matrix and the one to its right. Transposed: element
/// (2 (i % 4), i / 4) and the one below it.
template <bool Transposed>
PAGODA_DEVICE void load_matrices(std::uint32_t* m, std::uint32_t at) {
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
}

/// Loads 16 bytes from shared memory.
PAGODA_DEVICE float4 load_shared(std::uint32_t at) {
  float4 r;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(r.x), "=f"(r.y), "=f"(r.z), "=f"(r.w)
               : "r"(at)
               : "memory");
  return r;
}
PAGODA_DEVICE uint4 load_shared_bits(std::uint32_t at) {
  uint4 r;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
               : "r"(at)
               : "memory");
  return r;
}
/// Loads one or two numbers from shared memory.
PAGODA_DEVICE float load_shared_float(std::uint32_t at) {
  float r;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(r) : "r"(at) : "memory");
  return r;
}
PAGODA_DEVICE float2 load_shared_float2(std::uint32_t at) {
  float2 r;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(r.x), "=f"(r.y) : "r"(at) : "memory");
  return r;
}
PAGODA_DEVICE void store_shared_float(std::uint32_t at, float x) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(x) : "memory");
}
PAGODA_DEVICE void store_shared(std::uint32_t at, uint4 v) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
PAGODA_DEVICE void store_shared(std::uint32_t at, float4 v) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
}
/// Stores 16 bytes of zeros.
PAGODA_DEVICE void clear_shared(std::uint32_t at) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(0) : "memory");
}

/// 2^x; 2^-infinity is 0.
PAGODA_DEVICE float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// log2(x) to about two units in the last place.
PAGODA_DEVICE float log2_fast(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
PAGODA_DEVICE float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Packs two numbers into one operand word, the first into the lower half.
template <bool Bf16>
PAGODA_DEVICE std::uint32_t pack(float low, float high) {
  if constexpr (Bf16) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const std::uint32_t&>(pair);
  } else {
    const __half2 pair = __floats2half2_rn(low, high);
    return reinterpret_cast<const std::uint32_t&>(pair);
  }
}

/// Unpacks an operand word.
template <bool Bf16>
PAGODA_DEVICE float2 unpack(std::uint32_t word) {
  if constexpr (Bf16) {
    return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(word));
  } else {
    return __half22float2(reinterpret_cast<const __half2&>(word));
  }
}

/// Converts two e4m3 numbers (the lower bytes) to two fp16 numbers. sm_89 and newer.
PAGODA_DEVICE std::uint32_t widen(std::uint32_t bytes) {
  std::uint32_t r = 0;
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
  asm("{.reg .b16 t; cvt.u16.u32 t, %1; cvt.rn.f16x2.e4m3x2 %0, t;}" : "=r"(r) : "r"(bytes));
#endif
  return r;
}

/// Loads 16 bytes, or a float, of global memory that nothing writes while the kernel runs.
PAGODA_DEVICE uint4 load_constant(const char* from, std::uint64_t policy) {
  uint4 r;
  asm volatile("ld.global.nc.L2::cache_hint.v4.b32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
               : "l"(from), "l"(policy));
  return r;
}
PAGODA_DEVICE float load_constant_float(const char* from, std::uint64_t policy) {
  float r;
  asm volatile("ld.global.nc.L2::cache_hint.f32 %0, [%1], %2;" : "=f"(r) : "l"(from), "l"(policy));
  return r;
}

/// Converts the four e4m3 numbers of a word to fp16, two to a word. The upper half needs no shift. sm_89 and newer.
PAGODA_DEVICE void widen_pairs(std::uint32_t (&r)[2], std::uint32_t word) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
  asm("{.reg .b16 low, high; mov.b32 {low, high}, %2; cvt.rn.f16x2.e4m3x2 %0, low; cvt.rn.f16x2.e4m3x2 %1, high;}"
      : "=r"(r[0]), "=r"(r[1])
      : "r"(word));
#endif
}

/// Cache policy for data that is read once: it is the first to leave the second-level cache.
PAGODA_DEVICE std::uint64_t read_once_policy() {
  std::uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

/// Removes 128 bytes, which must be aligned, from the second-level cache without writing them to memory. Their contents
/// are undefined until they are written again.
PAGODA_DEVICE void discard_line(void* at) { asm volatile("discard.global.L2 [%0], 128;" ::"l"(at) : "memory"); }

/// Cache policies for tensor copies: of data that other blocks read too, or that is read once. The values are those of
/// CUTLASS (TMA::CacheHintSm90::EVICT_NORMAL and EVICT_FIRST). Constants take no registers.
PAGODA_DEVICE std::uint64_t ordinary_policy() { return 0x1000000000000000ull; }
PAGODA_DEVICE std::uint64_t copy_once_policy() { return 0x12f0000000000000ull; }

/// Starts to copy 16 bytes from global to shared memory, with a cache policy or without. nvcc 13.0 overwrites half of
/// the policy where `to` is the sum of a uniform and another register, and the instruction is then illegal.
PAGODA_DEVICE void copy_async(std::uint32_t to, const char* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
PAGODA_DEVICE void copy_async(std::uint32_t to, const char* from, std::uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "l"(policy)
               : "memory");
}
/// Starts to copy the first `bytes` of 16 bytes, 0 to 16; the others become 0 and are not read.
PAGODA_DEVICE void copy_prefix_async(std::uint32_t to, const char* from, int bytes, std::uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to), "l"(from), "r"(bytes),
               "l"(policy)
               : "memory");
}
/// Starts to copy 4 bytes, or to set them to 0 without reading.
PAGODA_DEVICE void copy_word_or_clear_async(std::uint32_t to, const char* from, std::uint64_t policy, bool clear) {
  asm volatile("cp.async.ca.shared.global.L2::cache_hint [%0], [%1], 4, %2, %3;" ::"r"(to), "l"(from),
               "r"(clear ? 0 : 4), "l"(policy)
               : "memory");
}
/// Starts to copy 4 bytes.
PAGODA_DEVICE void copy_word_async(std::uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
PAGODA_DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
PAGODA_DEVICE void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// Barriers that count bytes, and copies by tensor maps: sm_90 and newer.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
PAGODA_DEVICE void barrier_init(std::uint32_t barrier, int arrivals = 1) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
/// Makes initialised barriers visible to the copy engine.
PAGODA_DEVICE void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
PAGODA_DEVICE void barrier_expect_bytes(std::uint32_t barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
/// The thread arrives at the barrier when all copies that it has started with copy_async are complete. The barrier's
/// number of arrivals includes this one.
PAGODA_DEVICE void barrier_arrive_after_copies(std::uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}
PAGODA_DEVICE void barrier_arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}
PAGODA_DEVICE void barrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

/// Starts to copy a box of a tensor map to shared memory; the barrier counts its bytes. c1 to c4: where it begins, in
/// the dimensions of the map behind the first one.
PAGODA_DEVICE void copy_tensor_box_at(std::uint32_t to, const CUtensorMap* map, int c1, int c2, int c3, int c4,
                                      std::uint32_t barrier, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1, {%2, %3, %4, %5, %6}], [%7], %8;" ::"r"(to),
      "l"(map), "r"(0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "r"(barrier), "l"(policy)
      : "memory");
}
PAGODA_DEVICE void copy_tensor_box(std::uint32_t to, const CUtensorMap* map, int token, int head, int page,
                                   std::uint32_t barrier, std::uint64_t policy) {
  copy_tensor_box_at(to, map, token, 0, head, page, barrier, policy);
}
/// Starts to bring bytes of global memory to the second-level cache. Address and number are multiples of 16.
PAGODA_DEVICE void prefetch_bulk(const char* from, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}
PAGODA_DEVICE void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
/// Orders threads' accesses to shared memory before those of copies and of matrix products (the asynchronous proxy).
PAGODA_DEVICE void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// Clusters of blocks, in launches that have them. Each thread arrives and later waits. Then all blocks of the cluster
/// run, and their barriers may be used if fence_barrier_init preceded the arrival.
PAGODA_DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }
PAGODA_DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }
PAGODA_DEVICE int cluster_rank() {
  int rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
/// The same place in the shared memory of block `rank` of the cluster. Only the functions below take such an address.
PAGODA_DEVICE std::uint32_t cluster_address(std::uint32_t at, int rank) {
  std::uint32_t r;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(at), "r"(rank));
  return r;
}
/// Waits for arrivals of all blocks of the cluster.
PAGODA_DEVICE void barrier_wait_in_cluster(std::uint32_t barrier, std::uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
PAGODA_DEVICE void barrier_arrive_in_cluster(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// Starts to store 16 bytes to a block of the cluster. A barrier of that block counts the bytes.
PAGODA_DEVICE void store_async4(std::uint32_t to, float4 v, std::uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
      "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(barrier)
      : "memory");
}

/// Programmatic launches. wait_for_previous_kernel returns when the previous kernel has ended and its writes are
/// visible. The next kernel may start when all blocks have called allow_next_kernel.
PAGODA_DEVICE void wait_for_previous_kernel() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
PAGODA_DEVICE void allow_next_kernel() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
#else
PAGODA_DEVICE void barrier_init(std::uint32_t, int = 1) {}
PAGODA_DEVICE void fence_barrier_init() {}
PAGODA_DEVICE void barrier_expect_bytes(std::uint32_t, std::uint32_t) {}
PAGODA_DEVICE void barrier_arrive_after_copies(std::uint32_t) {}
PAGODA_DEVICE void barrier_arrive(std::uint32_t) {}
PAGODA_DEVICE void barrier_wait(std::uint32_t, std::uint32_t) {}
PAGODA_DEVICE void copy_tensor_box_at(std::uint32_t, const CUtensorMap*, int, int, int, int, std::uint32_t,
                                      std::uint64_t) {}
PAGODA_DEVICE void copy_tensor_box(std::uint32_t, const CUtensorMap*, int, int, int, std::uint32_t, std::uint64_t) {}
PAGODA_DEVICE void prefetch_bulk(const char*, int) {}
PAGODA_DEVICE void prefetch_map(const CUtensorMap*) {}
PAGODA_DEVICE void fence_async_proxy() {}
PAGODA_DEVICE void cluster_arrive() {}
PAGODA_DEVICE void cluster_wait() {}
PAGODA_DEVICE int cluster_rank() { return 0; }
PAGODA_DEVICE std::uint32_t cluster_address(std::uint32_t at, int) { return at; }
PAGODA_DEVICE void barrier_wait_in_cluster(std::uint32_t, std::uint32_t) {}
PAGODA_DEVICE void barrier_arrive_in_cluster(std::uint32_t) {}
PAGODA_DEVICE void store_async4(std::uint32_t, float4, std::uint32_t) {}
PAGODA_DEVICE void wait_for_previous_kernel() {}
PAGODA_DEVICE void allow_next_kernel() {}
#endif

/// Relaxed loads and stores at GPU scope, to exchange data between blocks. Each word is on its own: vectors are not
/// atomic.
/// Offset: of the element, in float4s. Loads from one pointer with several offsets take fewer registers.
template <int Offset = 0>
PAGODA_DEVICE float4 load_relaxed_gpu4(const float4* p) {
  float4 r;
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4 + %5];"
               : "=f"(r.x), "=f"(r.y), "=f"(r.z), "=f"(r.w)
               : "l"(p), "n"(Offset * 16)
               : "memory");
  return r;
}
PAGODA_DEVICE float2 load_relaxed_gpu2(const float2* p) {
  float2 r;
  asm volatile("ld.relaxed.gpu.global.v2.f32 {%0, %1}, [%2];" : "=f"(r.x), "=f"(r.y) : "l"(p) : "memory");
  return r;
}
PAGODA_DEVICE void store_relaxed_gpu4(float4* p, float4 v) {
  asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(p), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
               : "memory");
}
PAGODA_DEVICE void store_relaxed_gpu2(float2* p, float2 v) {
  asm volatile("st.relaxed.gpu.global.v2.f32 [%0], {%1, %2};" ::"l"(p), "f"(v.x), "f"(v.y) : "memory");
}

}  // namespace pagoda::ptx
