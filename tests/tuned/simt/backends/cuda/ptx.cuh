// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/types.hpp>

#include "tests/tuned/simt/simt.hpp"

#include <cuda.h>

// Pairs of fp16.
struct __half {
  std::uint16_t bits;
};
struct __half2 {
  std::uint16_t x, y;
};
inline __half __ushort_as_half(unsigned short bits) { return {bits}; }
inline __half2 __half2half2(__half h) { return {h.bits, h.bits}; }
inline __half2 __hsub2(__half2 a, __half2 b) {
  const auto minus = [](std::uint16_t x, std::uint16_t y) {
    return pagoda::detail::float_to_half(pagoda::detail::half_to_float(x) - pagoda::detail::half_to_float(y));
  };
  return {minus(a.x, b.x), minus(a.y, b.y)};
}

/// In place of backends/cuda/ptx.cuh, for device code that a host runs. Addresses in shared memory count from the
/// beginning of the block's.
namespace pagoda::ptx {

#define PAGODA_DEVICE inline
#define PAGODA_SM90 1

namespace simt = pagoda::simt;

PAGODA_DEVICE std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(simt::running->shared_offset(p));
}
template <class T>
T& shared_at(std::uint32_t at) {
  return *reinterpret_cast<T*>(simt::running->shared(at, sizeof(T)));
}

PAGODA_DEVICE float4 load_shared(std::uint32_t at) { return shared_at<float4>(at); }
PAGODA_DEVICE uint4 load_shared_bits(std::uint32_t at) { return shared_at<uint4>(at); }
PAGODA_DEVICE void store_shared(std::uint32_t at, uint4 v) { shared_at<uint4>(at) = v; }
PAGODA_DEVICE void clear_shared(std::uint32_t at) { shared_at<uint4>(at) = {}; }

PAGODA_DEVICE float exp2_fast(float x) { return std::exp2(x); }
PAGODA_DEVICE float reciprocal(float x) { return 1 / x; }

template <bool Bf16>
PAGODA_DEVICE std::uint32_t pack(float low, float high) {
  const auto bits = [](float x) -> std::uint32_t {
    return Bf16 ? detail::float_to_bfloat16(x) : detail::float_to_half(x);
  };
  return bits(low) | bits(high) << 16;
}
template <bool Bf16>
PAGODA_DEVICE float to_float(std::uint32_t bits) {
  const auto x = static_cast<std::uint16_t>(bits);
  return Bf16 ? detail::bfloat16_to_float(x) : detail::half_to_float(x);
}
template <bool Bf16>
PAGODA_DEVICE float2 unpack(std::uint32_t word) {
  return {to_float<Bf16>(word & 0xffff), to_float<Bf16>(word >> 16)};
}

/// Two numbers of e4m3 as two of fp16.
PAGODA_DEVICE std::uint32_t widen(std::uint32_t bytes) {
  const auto widened = [](std::uint32_t byte) {
    return float(std::bit_cast<fp8_e4m3_t>(static_cast<std::uint8_t>(byte)));
  };
  return pack<false>(widened(bytes & 0xff), widened(bytes >> 8 & 0xff));
}

/// Matrix products of a warp, and loads of their operands.
template <bool Transposed>
PAGODA_DEVICE void load_matrices(std::uint32_t* m, std::uint32_t at) {
  const unsigned lane = threadIdx.x % 32;
  auto& warp          = simt::running->warp();
  const auto& rows    = warp.exchange(static_cast<int>(lane), at);
  for (unsigned i = 0; i < 4; ++i) {
    const auto element = [&](unsigned row, unsigned column) -> std::uint32_t {
      return shared_at<std::uint16_t>(rows[8 * i + row] + 2 * column);
    };
    const unsigned one = lane / 4, two = lane % 4 * 2;
    m[i] =
        Transposed ? element(two, one) | element(two + 1, one) << 16 : element(one, two) | element(one, two + 1) << 16;
  }
  warp.wait();
}
template <bool Bf16>
PAGODA_DEVICE void mma(float (&d)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2, std::uint32_t a3,
                       std::uint32_t b0, std::uint32_t b1) {
  const unsigned lane = threadIdx.x % 32;
  auto& warp          = simt::running->warp();
  warp.a[lane] = {a0, a1, a2, a3}, warp.b[lane] = {b0, b1};
  warp.wait();
  for (unsigned e = 0; e < 4; ++e) {
    const unsigned row = lane / 4, below = e / 2, column = lane % 4 * 2 + e % 2;
    for (unsigned k = 0; k < 16; ++k) {
      const std::uint32_t a = warp.a[row * 4 + k % 8 / 2][k / 8 * 2 + below], b = warp.b[column * 4 + k % 8 / 2][k / 8];
      d[e] += to_float<Bf16>(a >> k % 2 * 16 & 0xffff) * to_float<Bf16>(b >> k % 2 * 16 & 0xffff);
    }
  }
  warp.wait();
}

/// Barriers of the block (bar.sync and barrier.sync).
template <int Barrier, int Threads>
PAGODA_DEVICE void sync_threads() {
  simt::running->barrier(Barrier).wait(Threads);
}
template <int Barrier, int Threads>
PAGODA_DEVICE void sync_threads_from_anywhere() {
  simt::running->barrier(Barrier).wait(Threads);
}

// --- copies by threads ---

PAGODA_DEVICE std::uint64_t ordinary_policy() { return 0; }
PAGODA_DEVICE std::uint64_t copy_once_policy() { return 0; }
PAGODA_DEVICE std::uint64_t read_once_policy() { return 0; }
template <int Bytes>
void add_copy(std::uint32_t to, const void* from) {
  simt::running->add_copy([=] { std::memcpy(simt::running->shared(to, Bytes), from, Bytes); });
}
PAGODA_DEVICE void copy_async(std::uint32_t to, const char* from) { add_copy<16>(to, from); }
PAGODA_DEVICE void copy_async(std::uint32_t to, const char* from, std::uint64_t) { add_copy<16>(to, from); }
PAGODA_DEVICE void copy_word_async(std::uint32_t to, const void* from) { add_copy<4>(to, from); }
PAGODA_DEVICE void commit_copies() {}
/// Waits for all copies of the block, which is more than it must.
template <int N>
PAGODA_DEVICE void wait_copies() {
  simt::running->end_copies();
}

// --- barriers in shared memory, and copies by tensor maps ---

/// An mbarrier, in its eight bytes of shared memory.
struct Mbarrier {
  std::int32_t bytes;   ///< expected, and not copied yet
  std::uint32_t state;  ///< arrivals that are left, arrivals of a phase (<< 16), and the phase's parity (<< 31)

  static constexpr std::uint32_t left = 0xffff, parity = 0x80000000u;
  void settle() {
    if ((state & left) != 0 || bytes != 0) return;
    state = (state ^ parity) | (state >> 16 & 0x7fff);
    simt::running->made_progress();
  }
};
static_assert(sizeof(Mbarrier) == 8);
PAGODA_DEVICE void barrier_init(std::uint32_t barrier, int arrivals = 1) {
  const auto count             = static_cast<std::uint32_t>(arrivals);
  shared_at<Mbarrier>(barrier) = {0, count << 16 | count};
}
PAGODA_DEVICE void fence_barrier_init() {}
PAGODA_DEVICE void barrier_arrive(std::uint32_t barrier) {
  auto& b = shared_at<Mbarrier>(barrier);
  if ((b.state & Mbarrier::left) == 0) throw std::logic_error("an mbarrier has more arrivals than it waits for");
  --b.state, b.settle();
}
PAGODA_DEVICE void barrier_expect_bytes(std::uint32_t barrier, std::uint32_t bytes) {
  shared_at<Mbarrier>(barrier).bytes += static_cast<std::int32_t>(bytes);
  barrier_arrive(barrier);
}
PAGODA_DEVICE void barrier_arrive_after_copies(std::uint32_t barrier) {
  simt::running->add_copy([=] { barrier_arrive(barrier); });
}
PAGODA_DEVICE void barrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  simt::running->wait_while(&shared_at<Mbarrier>(barrier).state, Mbarrier::parity, parity << 31);
}

PAGODA_DEVICE std::uint32_t swizzled(std::uint32_t at) { return at ^ (at >> 3 & 0x70); }
/// Copies a box that begins at `begin`, in the dimensions of the map.
PAGODA_DEVICE void copy_box(std::uint32_t to, const CUtensorMap* map, const std::array<cuuint64_t, 5>& begin,
                            std::uint32_t barrier) {
  const auto row_bytes = static_cast<std::uint32_t>(map->box[0] * map->element_bytes);
  cuuint32_t i[5]      = {};
  std::uint32_t copied = 0;
  for (i[4] = 0; i[4] < map->box[4]; ++i[4])
    for (i[3] = 0; i[3] < map->box[3]; ++i[3])
      for (i[2] = 0; i[2] < map->box[2]; ++i[2])
        for (i[1] = 0; i[1] < map->box[1]; ++i[1], copied += row_bytes) {
          const char* from = map->data;
          bool inside      = true;
          for (int d = 1; d < 5; ++d) {
            from += (begin[d] + i[d]) * map->strides[d];
            inside = inside && begin[d] + i[d] < map->dims[d];
          }
          for (std::uint32_t chunk = 0; chunk < row_bytes; chunk += 16) {
            char* const place = simt::running->shared(swizzled(to + copied + chunk), 16);
            inside ? std::memcpy(place, from + chunk, 16) : std::memset(place, 0, 16);
          }
        }
  auto& b = shared_at<Mbarrier>(barrier);
  b.bytes -= static_cast<std::int32_t>(copied), b.settle();
}
PAGODA_DEVICE void copy_tensor_box_at(std::uint32_t to, const CUtensorMap* map, int c1, int c2, int c3, int c4,
                                      std::uint32_t barrier, std::uint64_t) {
  const std::array begin{cuuint64_t(0), cuuint64_t(c1), cuuint64_t(c2), cuuint64_t(c3), cuuint64_t(c4)};
  simt::running->add_copy([=] { copy_box(to, map, begin, barrier); });
}
PAGODA_DEVICE void copy_tensor_box(std::uint32_t to, const CUtensorMap* map, int token, int head, int page,
                                   std::uint32_t barrier, std::uint64_t policy) {
  copy_tensor_box_at(to, map, token, 0, head, page, barrier, policy);
}
PAGODA_DEVICE void prefetch_map(const CUtensorMap*) {}
PAGODA_DEVICE void fence_async_proxy() {}

// --- memory that blocks share ---

/// Readers poll until no word has this value (empty_sentinel), so other threads run in between.
template <class Words>
Words polled(const Words* p) {
  const auto words = std::bit_cast<std::array<std::uint32_t, sizeof(Words) / 4>>(*p);
  if (std::ranges::find(words, 0xffffffffu) != words.end()) simt::running->yield();
  return *p;
}
template <int Offset = 0>
PAGODA_DEVICE float4 load_relaxed_gpu4(const float4* p) {
  return polled(p + Offset);
}
PAGODA_DEVICE float2 load_relaxed_gpu2(const float2* p) { return polled(p); }
PAGODA_DEVICE void store_relaxed_gpu4(float4* p, float4 v) { *p = v; }
PAGODA_DEVICE void store_relaxed_gpu2(float2* p, float2 v) { *p = v; }

}  // namespace pagoda::ptx
