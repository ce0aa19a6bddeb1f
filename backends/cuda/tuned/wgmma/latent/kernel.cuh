// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/wgmma/join.cuh"
#include "backends/cuda/tuned/wgmma/latent/scores.cuh"
#include "backends/cuda/tuned/wgmma/latent/values.cuh"

/// Decode attention over latent caches, for up to 64 (two blocks: 128) query rows of a kv head. Work is divided among
/// four warpgroups, nearly as in FlashMLA (DeepSeek) and FlashAttention-3 (Shah et al., 2024):
///  - Two warpgroups alternate between tiles of 64 tokens: copy, scores, softmax, probabilities to shared memory. Each
///    has room for one tile. While one computes its softmax, the scores of the other keep the matrix units busy.
///  - Two warpgroups each add every tile's values to half of the output's dims, which fill their registers.
/// No warp waits for the whole block: all data passes through barriers in shared memory.
namespace pagoda::tuned::wgmma::latent {

/// Called by one warp. Copies: see copies_tiles. The warps that copy set up the barriers of their first copies
/// (Scorer::start_first_copies).
template <bool Copies>
PAGODA_DEVICE void init_barriers(SharedMemory shared, int lane) {
  // Warps arrive at `full` if they make tiles.
  constexpr int end_of_copies = Copies ? Barriers::empty : Barriers::full;
  constexpr int end_of_group  = Copies ? Barriers::full : Barriers::empty;
  const bool of_copies        = lane == Barriers::q_full || (lane >= Barriers::full && lane < end_of_copies);
  const bool of_group         = lane == Barriers::p_full || (lane >= Barriers::max_ready && lane < end_of_group);
  if (lane < Barriers::count && !of_copies)
    barrier_init(shared.barrier(lane), of_group ? 4 : lane >= Barriers::received ? 1 : 8);
  fence_barrier_init();
}

template <Type T, int BlocksPerHead, class Args>
PAGODA_DEVICE void decode_block(const Args& args) {
  constexpr bool copies = copies_tiles<T, Args>;
  extern __shared__ __align__(1024) char memory[];
  const int warp = __shfl_sync(~0u, threadIdx.x >> 5, 0), lane = threadIdx.x & 31;
  const SharedMemory shared{shared_address(memory)};
  if (warp == 0) {
    init_barriers<copies>(shared, lane);
    if (lane == 0) {
      if constexpr (copies) prefetch_map(&args.k_map);
      prefetch_map(&args.q_map);
    }
  }
  if (warp >= 8) {
    decrease_registers<96>();
    score_tiles<T, BlocksPerHead>(args, shared, memory, warp / 4 - 2, warp % 4, lane);
    increase_registers<128>();
  } else {
    increase_registers<160>();
    add_values<is_bf16<T>, BlocksPerHead>(args, shared, memory, warp / 4, warp % 4, lane);
    decrease_registers<128>();
  }
  const auto* pending  = reinterpret_cast<const PendingJoin*>(memory + SharedLayout::pending);
  const auto* finished = reinterpret_cast<const FinishedSegment*>(memory + SharedLayout::finished);
  join_pending<BlocksPerHead, head_dim_v, threads>(args, pending, finished->paired, memory + SharedLayout::tiles, warp,
                                                   lane);
}

/// Args: wgmma::Args or RaggedArgs, or either in PairedArgs, or PassArgs or SmallPageArgs.
template <Type T, int BlocksPerHead, class Args>
__global__ void __launch_bounds__(threads, 1) decode_kernel(const __grid_constant__ Args args) {
#if PAGODA_SM90A
  decode_block<T, BlocksPerHead>(args);
#else
  __trap();
#endif
}

}  // namespace pagoda::tuned::wgmma::latent
