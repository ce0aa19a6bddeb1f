// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/wgmma/latent/barriers.cuh"
#include "backends/cuda/tuned/wgmma/output.cuh"
#include "backends/cuda/wgmma.cuh"

namespace pagoda::tuned::wgmma::latent {

/// Adds the values of all tiles to half of the output's dims, by a warpgroup. A lane has two rows, eight apart, and of
/// each eight dims two.
template <bool Bf16, int Together>
PAGODA_DEVICE void add_values(const Args& args, Place at, char* memory, int half, int warp, int lane) {
  const float* const kept    = reinterpret_cast<const float*>(memory + Shared::kept);
  const int* const sign_here = reinterpret_cast<const int*>(memory + Shared::signs) + warp;
  const float2* const states = reinterpret_cast<const float2*>(memory + Shared::states);
  const int row = 16 * warp + (lane >> 2), here = rows_here<Together>(args);
  const bool active = 16 * warp < here;

  at.begin();
  int segments = 0;
  float o[2][64];  // 128 dims each: ptxas takes no more for a block of so many threads
  for (int n = 0;; ++n) {
    const int slot = n % stages;
    at.wait(Shared::p_full, n);
    const int sign = *sign_here;
    if (sign & no_more) break;
    at.wait(Shared::full + slot, n / stages);
    if (sign & raised) {
      const float kept0 = kept[row], kept1 = kept[row + 8];
#pragma unroll
      for (int e = 0; e < 128; ++e) o[e / 64][e % 64] *= e & 2 ? kept1 : kept0;
    }
    const std::uint64_t p    = fresh(operand(at.memory + Shared::probabilities, run_bytes));
    const std::uint64_t tile = fresh(operand(
        at.memory + Shared::tiles + slot * tile_bytes + half * (head_dim_v / 128) * run_bytes, eight, run_bytes));
    const bool adds          = !(sign & first_of_row);
    wgmma_keep(o[0]), wgmma_keep(o[1]);
    wgmma_begin();
#pragma unroll
    for (int j = 0; j < Shared::quarters; ++j) {
#pragma unroll
      for (int d = 0; d < 2; ++d)
        wgmma_transposed<Bf16>(o[d], operand_at(p, j * 32), operand_at(tile, j * 2 * eight + d * 2 * run_bytes),
                               adds || j > 0);
      wgmma_commit();
    }
    const int empty = Shared::empty + slot * Shared::quarters;
    wgmma_wait<3>();
    at.arrive(empty, lane);
    wgmma_wait<2>();
    at.arrive(empty + 1, lane);
    wgmma_wait<1>();
    at.arrive(empty + 2, lane);
    wgmma_wait<0>();
    at.arrive(empty + 3, lane);
    at.arrive(Shared::p_empty + (n & 1), lane);
    wgmma_keep(o[0]), wgmma_keep(o[1]);
    if (!(sign & last_of_row)) continue;

    at.wait(Shared::state_full, segments++);
    const Ended ended = *reinterpret_cast<const Ended*>(memory + Shared::ended);
    float2 state[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float2 one = states[row + 8 * r], other = states[rows + row + 8 * r];
      state[r].x = fmaxf(one.x, other.x);
      state[r].y = one.y * exp2_fast(one.x - state[r].x) + other.y * exp2_fast(other.x - state[r].x);
    }
    at.arrive(Shared::state_empty, lane);
    if (active) end_row<Together, 2>(args, ended, o, state, half, row, lane);
  }
}

}  // namespace pagoda::tuned::wgmma::latent
