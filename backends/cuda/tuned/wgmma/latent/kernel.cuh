// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/wgmma/join.cuh"
#include "backends/cuda/tuned/wgmma/latent/scores.cuh"
#include "backends/cuda/tuned/wgmma/latent/values.cuh"

/// Decode attention where up to 64 (two blocks: 128) query rows share a kv head. Four warpgroups, after
/// FlashMLA (DeepSeek) and FlashAttention-3 (Shah et al., 2024), which divide the work nearly so:
///  - two warpgroups take turns at tiles of 64 tokens: copy, scores, softmax, probabilities to shared memory. Each has
///    room for one tile. While one is at its softmax the other's scores keep the matrix units busy;
///  - two warpgroups add each tile's values to half of the output's dims each, which fill their registers.
/// Nobody waits for the whole block: everything is handed on by barriers in shared memory.
namespace pagoda::tuned::wgmma::latent {

template <bool Bf16, int Together>
PAGODA_DEVICE void decode_block(const Args& args) {
  extern __shared__ __align__(1024) char memory[];
  const int warp = __shfl_sync(~0u, threadIdx.x >> 5, 0), lane = threadIdx.x & 31;
  const Place at{shared_address(memory)};
  if (warp == 0) {
    const auto init = [&](int i, int arrivals) {
      if (lane == i) barrier_init(at.barrier(i), arrivals);
    };
    init(Shared::q_full, 1), init(Shared::q_empty, 8);
    init(Shared::p_full, 4);
    init(Shared::state_full, 8), init(Shared::state_empty, 8);
    for (int i = 0; i < 2; ++i) init(Shared::p_empty + i, 8), init(Shared::turn + i, 4);
    for (int i = 0; i < stages; ++i) init(Shared::full + i, 1);
    for (int i = Shared::empty; i < Shared::count; ++i) init(i, 8);
    barrier_init_done();
    if (lane == 0) prefetch_map(&args.k_map), prefetch_map(&args.q_map);
  }
  if (warp >= 8) {
    give_registers<96>();
    score_tiles<Bf16, Together>(args, at, memory, warp / 4 - 2, warp % 4, lane);
    take_registers<128>();
  } else {
    take_registers<160>();
    add_values<Bf16, Together>(args, at, memory, warp / 4, warp % 4, lane);
    give_registers<128>();
  }
  finish<Together, head_dim_v, threads>(args, reinterpret_cast<const Debt*>(memory + Shared::debts),
                                        memory + Shared::tiles, warp, lane);
}

template <bool Bf16, int Together>
__global__ void __launch_bounds__(threads, 1) decode_kernel(const __grid_constant__ Args args) {
#if PAGODA_SM90A
  decode_block<Bf16, Together>(args);
#else
  __trap();
#endif
}

}  // namespace pagoda::tuned::wgmma::latent
