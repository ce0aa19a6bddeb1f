// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/kernel/one_lane.hpp"
#include "src/kernel/simt_machine.hpp"

namespace pagoda::detail {

#if defined(__HIP_DEVICE_COMPILE__)
struct HipLanes {
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
  /// -1: none.
  __device__ static int first_lane(bool is) { return __ffsll(static_cast<unsigned long long>(__ballot(is))) - 1; }
  __device__ static int broadcast(int x, int lane) { return __shfl(x, lane); }
};
#else
using HipLanes = OneLane;
#endif

struct HipMachine : SimtMachine<Kokkos::HIP, HipMachine>, HipLanes {
  static constexpr int tile_tokens = 64;  // one token per lane of wave64, two of wave32

  template <class T>
  using Fragments = PortableFragments<T>;

  /// Orders this worker's scratch writes before its other lanes' reads. Lanes run in lock-step; the compiler does not
  /// know that without being told.
  KOKKOS_FUNCTION static void sync_worker(const Member&) {
    KOKKOS_IF_ON_DEVICE((__builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront"); __builtin_amdgcn_wave_barrier();))
  }
};

}  // namespace pagoda::detail
