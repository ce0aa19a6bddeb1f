// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/wgmma/rows.cuh"
#include "backends/cuda/wgmma.cuh"
#include "src/kernel/online_softmax.hpp"

/// A tile's scores, and the softmax before the values are added. A lane has 32 scores of the product of 64 query rows
/// and 64 tokens: two rows, eight apart, and two tokens of each eight. x[e] is of row e / 2 % 2. Products with fewer
/// tokens have fewer scores, N.
namespace pagoda::tuned::wgmma {

using detail::initial_max;
using detail::rescale_threshold;

/// Starts the products of 64 rows of queries and 64 rows of keys, both of D dims. wgmma_wait waits for them.
template <bool Bf16, int D, int N>
PAGODA_DEVICE void start_scores(float (&x)[N], std::uint64_t q, std::uint64_t k) {
  wgmma_fence_registers(x);
  wgmma_fence();
#pragma unroll
  for (int j = 0; j < D / 16; ++j) {
    const int dims = j / 4 * run_bytes + j % 4 * 32;
    ptx::wgmma<Bf16>(x, advance_descriptor(q, dims), advance_descriptor(k, dims), j > 0);
  }
  wgmma_commit();
}

/// The same with a warp's rows of queries in registers, as load_matrices loads them.
template <bool Bf16, int D>
PAGODA_DEVICE void start_scores(float (&x)[32], const std::uint32_t (&q)[D / 16][4], std::uint64_t k) {
  wgmma_fence_registers(x);
  wgmma_fence();
#pragma unroll
  for (int j = 0; j < D / 16; ++j)
    wgmma_register_a<Bf16, false>(x, q[j], advance_descriptor(k, j / 4 * run_bytes + j % 4 * 32), j > 0);
  wgmma_commit();
}

/// Sets scores of tokens that a row does not see to -infinity. tokens_left: tokens of the sequence from the tile's
/// first on; row: the lane's first, among all that share the kv head.
PAGODA_DEVICE void mask_hidden(const auto& args, float (&x)[32], int batch, int tokens_left, int row, int column) {
  if (tokens_left < tile_tokens + args.hidden_bound) {
    const int hidden = hidden_tokens(args, batch);
    int seen[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) seen[r] = tokens_left - 2 * column - QueryRow(args, 0, row + 8 * r).hidden(hidden);
#pragma unroll
    for (int e = 0; e < 32; ++e)
      if (8 * (e / 4) + (e & 1) >= seen[e >> 1 & 1]) x[e] = -INFINITY;
  }
}

/// The largest scores that the lane has of its rows, times the scale.
template <int N>
PAGODA_DEVICE void lane_max(const float (&x)[N], float scale, float (&largest)[2]) {
  largest[0] = x[0], largest[1] = x[2];
#pragma unroll
  for (int e = 0; e < N; ++e) largest[e >> 1 & 1] = fmaxf(largest[e >> 1 & 1], x[e]);
  largest[0] *= scale, largest[1] *= scale;
}
/// Maximum and sum over the four lanes that have a row.
PAGODA_DEVICE float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
PAGODA_DEVICE float row_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

/// Turns scores into probabilities relative to the running maxima, and adds them to the lane's sums.
template <int N>
PAGODA_DEVICE void exponentiate(float (&x)[N], float scale, const float (&max)[2], float (&sum)[2]) {
#pragma unroll
  for (int e = 0; e < N; ++e) {
    x[e] = exp2_fast(x[e] * scale - max[e >> 1 & 1]);
    sum[e >> 1 & 1] += x[e];
  }
}
/// Packs them by two.
template <bool Bf16, int N>
PAGODA_DEVICE void pack_probabilities(const float (&x)[N], std::uint32_t (&p)[N / 2]) {
#pragma unroll
  for (int e = 0; e < N / 2; ++e) p[e] = pack<Bf16>(x[2 * e], x[2 * e + 1]);
}
template <bool Bf16, int N>
PAGODA_DEVICE void exponentiate(float (&x)[N], float scale, const float (&max)[2], float (&sum)[2],
                                std::uint32_t (&p)[N / 2]) {
  exponentiate(x, scale, max, sum);
  pack_probabilities<Bf16>(x, p);
}

}  // namespace pagoda::tuned::wgmma
