// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/warp/list_kernel.cuh"
#include "backends/cuda/tuned/wgmma/grouped/list_kernel.cuh"
#include "backends/cuda/tuned/wgmma/grouped/mixed_roles.cuh"

/// Decode attention for a list whose entries have many query rows or few. Blocks have one of two roles: that of a block
/// of the kernel for lists (list_kernel.cuh), or that of some warps of the kernel for few rows (warp/list_kernel.cuh).
/// Each role has its share of the blocks, so that both parts of the list are carried out at the same time.
namespace pagoda::tuned::wgmma::grouped {

/// Stages: of the ring of a warp that carries out entries of few rows.
template <Type T, int D, int Stages>
PAGODA_DEVICE void decode_mixed_list(const MixedArgs& args) {
  using Memory = ListMemory<T, D, 1>;
  extern __shared__ __align__(1024) char memory[];
  const int warp = __shfl_sync(~0u, threadIdx.x >> 5, 0), lane = threadIdx.x & 31;
  constexpr int capacity = Memory::layout.ring / 4 - start_memory(mixed_threads, mixed_few_warps, 2);
  if (threadIdx.x == 0) {
    prefetch_map(&args.many.k_map), prefetch_map(&args.many.v_map);
    prefetch_map(&args.few.k_map), prefetch_map(&args.few.v_map);
  }
  const ListStart start =
      find_start<mixed_threads, capacity>(MixedRoles{args}, args.many, reinterpret_cast<int*>(memory), warp);
  if (start.role == 0) {
    const Memory shared{memory, shared_address(memory)};
    if (warp == 0) shared.init(lane);
    __syncthreads();
    carry_out_share<T, D, 1, many_registers>(args.many, start, shared, warp, lane);
  } else {
    // Tiles are copied to where the scan has stored numbers.
    fence_async_proxy();
    __syncthreads();
    if (warp < mixed_few_warps) {
      increase_registers<few_registers>();
      warp::carry_out_share<T, D, Stages, mixed_few_warps>(args.few, start, memory, warp, lane);
    } else {
      decrease_registers<copier_registers(1, few_registers)>();
    }
  }
}

template <Type T, int D, int Stages>
__global__ void __launch_bounds__(mixed_threads, blocks_per_sm(1))
    mixed_list_kernel(const __grid_constant__ MixedArgs args) {
#if PAGODA_SM90A
  decode_mixed_list<T, D, Stages>(args);
#else
  __trap();
#endif
}

}  // namespace pagoda::tuned::wgmma::grouped
