// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/ptx.cuh"

/// In place of backends/cuda/wgmma.cuh. Lane 0 computes the products of its warp.
namespace pagoda::ptx {

#define PAGODA_SM90A 1

/// An operand in shared memory, with a swizzle of 128 bytes. It begins at `at`. Strides in bytes: `eights` from eight
/// rows to the next eight, `runs` from 64 elements of a row to the next 64.
struct MatrixDescriptor {
  std::uint32_t at;
  std::uint16_t eights, runs;
};
PAGODA_DEVICE std::uint64_t matrix_descriptor(std::uint32_t at, int eights, int runs = 16) {
  return std::bit_cast<std::uint64_t>(
      MatrixDescriptor{at, static_cast<std::uint16_t>(eights), static_cast<std::uint16_t>(runs)});
}
PAGODA_DEVICE std::uint64_t advance_descriptor(std::uint64_t descriptor, int bytes) {
  auto d = std::bit_cast<MatrixDescriptor>(descriptor);
  d.at += static_cast<std::uint32_t>(bytes);
  return std::bit_cast<std::uint64_t>(d);
}

PAGODA_DEVICE void wgmma_fence() {}
PAGODA_DEVICE void wgmma_commit() {}
/// Computes the products that have been started.
template <int N>
PAGODA_DEVICE void wgmma_wait() {
  static_assert(N == 0);
  auto& products = simt::running->products();
  for (const auto& product : products) product();
  products.clear();
}
template <int N>
PAGODA_DEVICE void wgmma_fence_registers(float (&)[N]) {}
template <int N>
PAGODA_DEVICE void increase_registers() {}
template <int N>
PAGODA_DEVICE void decrease_registers() {}

/// Element k of row `row`.
template <bool Bf16>
float element(const MatrixDescriptor& d, unsigned row, unsigned k) {
  return to_float<Bf16>(
      shared_at<std::uint16_t>(swizzled(d.at + row / 8 * d.eights + row % 8 * 128 + k / 64 * d.runs + k % 64 * 2)));
}
/// d = a b, or d += a b. A lane has N accumulators, of two rows, so b has 2 N columns. a(r, k): element of the warp's
/// 16 rows. transposed: the rows of b are rows in shared memory, not its columns.
template <bool Bf16, int N>
void add_products(float (&d)[N], const auto& a, std::uint64_t descriptor, bool transposed, bool add) {
  auto& grid     = *simt::running;
  auto& warp     = grid.warp();
  const auto b   = std::bit_cast<MatrixDescriptor>(descriptor);
  const int lane = grid.lane();
  warp.wait();
  if (lane == 0) {
    float rows[16][2 * N];
    for (unsigned k = 0; k < 16; ++k)
      for (unsigned column = 0; column < 2 * N; ++column)
        rows[k][column] = transposed ? element<Bf16>(b, k, column) : element<Bf16>(b, column, k);
    for (unsigned r = 0; r < 16; ++r) {
      float* const sums = warp.products[r];
      std::fill_n(sums, 2 * N, 0.0f);
      for (unsigned k = 0; k < 16; ++k) {
        const float factor = a(r, k);
        for (unsigned column = 0; column < 2 * N; ++column) sums[column] += factor * rows[k][column];
      }
    }
  }
  warp.wait();
  for (int e = 0; e < N; ++e) {
    const float product = warp.products[lane / 4 + e / 2 % 2 * 8][e / 4 * 8 + lane % 4 * 2 + e % 2];
    d[e]                = add ? d[e] + product : product;
  }
}
/// a in shared memory.
template <bool Bf16, int N>
PAGODA_DEVICE void wgmma(float (&d)[N], std::uint64_t a, std::uint64_t b, bool add) {
  simt::running->products().push_back([=, &d] {
    const auto operand       = std::bit_cast<MatrixDescriptor>(a);
    const unsigned first_row = threadIdx.x / 32 % 4 * 16;
    add_products<Bf16>(
        d, [&](unsigned r, unsigned k) { return element<Bf16>(operand, first_row + r, k); }, b, false, add);
  });
}
/// a in registers: of lanes in the layout of accumulators.
template <bool Bf16, bool TransposedB = true, int N>
PAGODA_DEVICE void wgmma_register_a(float (&d)[N], const std::uint32_t* a, std::uint64_t b, bool add) {
  simt::running->products().push_back([=, &d, words = std::array{a[0], a[1], a[2], a[3]}] {
    auto& warp                                              = simt::running->warp();
    warp.a[static_cast<std::size_t>(simt::running->lane())] = words;
    const auto of_lanes                                     = [&](unsigned r, unsigned k) {
      return to_float<Bf16>(warp.a[r % 8 * 4 + k % 8 / 2][k / 8 * 2 + r / 8] >> k % 2 * 16 & 0xffff);
    };
    add_products<Bf16>(d, of_lanes, b, TransposedB, add);
  });
}

}  // namespace pagoda::ptx
