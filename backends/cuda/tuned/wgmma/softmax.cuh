// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/wgmma/block.cuh"
#include "backends/cuda/wgmma.cuh"

/// A tile's scores, and what becomes of them before the values are added. A lane has 32 of them, as a product of 64
/// rows and 64 tokens leaves them: of two rows, eight apart, and of each eight tokens two; x[e] is of row e / 2 % 2.
namespace pagoda::tuned::wgmma {

/// Asks for the products of 64 rows of queries and of keys, both of D dims; wgmma_wait says that they are there.
template <bool Bf16, int D>
PAGODA_DEVICE void begin_scores(float (&x)[32], std::uint64_t q, std::uint64_t k) {
  wgmma_keep(x);
  wgmma_begin();
#pragma unroll
  for (int j = 0; j < D / 16; ++j) {
    const int dims = j / 4 * run_bytes + j % 4 * 32;
    ptx::wgmma<Bf16>(x, operand_at(q, dims), operand_at(k, dims), j > 0);
  }
  wgmma_commit();
}

/// The maximum that scores are taken relative to is raised only when one exceeds it by more than 2^8.
inline constexpr float let_pass = 8;

/// Scores of tokens that a row does not see become -infinity. there: tokens of the sequence from the tile's first on;
/// row: the lane's first, of all that share the kv head.
PAGODA_DEVICE void hide_unseen(const Args& args, float (&x)[32], int there, int row, int column) {
  if (there < tokens + args.hidden) {
    int seen[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) seen[r] = there - 2 * column - QueryRow(args, 0, row + 8 * r).hidden(args);
#pragma unroll
    for (int e = 0; e < 32; ++e)
      if (8 * (e / 4) + (e & 1) >= seen[e >> 1 & 1]) x[e] = -INFINITY;
  }
}

/// The lane's largest of each row, times the scale.
PAGODA_DEVICE void find_largest(const float (&x)[32], float scale, float (&most)[2]) {
  most[0] = x[0], most[1] = x[2];
#pragma unroll
  for (int e = 0; e < 32; ++e) most[e >> 1 & 1] = fmaxf(most[e >> 1 & 1], x[e]);
  most[0] *= scale, most[1] *= scale;
}
/// Of all lanes that have a row.
PAGODA_DEVICE float largest_of_row(float most) {
  most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
  return fmaxf(most, __shfl_xor_sync(~0u, most, 2));
}
PAGODA_DEVICE float sum_of_row(float sum) {
  sum += __shfl_xor_sync(~0u, sum, 1);
  return sum + __shfl_xor_sync(~0u, sum, 2);
}

/// Scores become probabilities relative to base, which are added to the lane's sums and packed by two.
template <bool Bf16>
PAGODA_DEVICE void weigh(float (&x)[32], float scale, const float (&base)[2], float (&sum)[2], std::uint32_t (&p)[16]) {
#pragma unroll
  for (int e = 0; e < 32; ++e) {
    x[e] = exp2_fast(x[e] * scale - base[e >> 1 & 1]);
    sum[e >> 1 & 1] += x[e];
  }
#pragma unroll
  for (int e = 0; e < 16; ++e) p[e] = pack<Bf16>(x[2 * e], x[2 * e + 1]);
}

}  // namespace pagoda::tuned::wgmma
