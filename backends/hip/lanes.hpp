// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/kernel/one_lane.hpp"

#include <hip/hip_runtime.h>
#include <Kokkos_Core.hpp>

/// The collectives of a wave.
namespace pagoda::detail::hip {

#if defined(__HIP_DEVICE_COMPILE__)
struct Lanes {
  template <class Member>
  __device__ static int lane(const Member&) {
    return static_cast<int>(threadIdx.x);
  }
  template <class Member>
  __device__ static int lanes_of(const Member&) {
    return static_cast<int>(blockDim.x);
  }
  __device__ static int lane_sum(int x) {
    for (int d = 1; d < static_cast<int>(blockDim.x); d *= 2) x += __shfl_xor(x, d);
    return x;
  }
  __device__ static int lane_max(int x) {
    for (int d = 1; d < static_cast<int>(blockDim.x); d *= 2) x = Kokkos::max(x, __shfl_xor(x, d));
    return x;
  }
  /// Sum over this lane and those before it.
  __device__ static int lane_scan(int x) {
    for (int d = 1; d < static_cast<int>(blockDim.x); d *= 2) {
      const int below = __shfl_up(x, d);
      if (static_cast<int>(threadIdx.x) >= d) x += below;
    }
    return x;
  }
  /// The first lane with `is`; -1 if there is none.
  __device__ static int first_lane(bool is) { return __ffsll(static_cast<unsigned long long>(__ballot(is))) - 1; }
  /// x of a lane, as a scalar. `lane` is the same in all lanes.
  __device__ static int broadcast(int x, int lane) { return __builtin_amdgcn_readlane(x, lane); }
};
#else
using Lanes = OneLane;
#endif

}  // namespace pagoda::detail::hip
