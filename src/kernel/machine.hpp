// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Kokkos_Core.hpp>

/// The machine trait of each execution space. The generic kernels know their machine only through it:
///   Member, policy, policy_of<Fragment>   how a team is launched
///   Fragments<T>                          how tiles are read and multiplied: a list in order of preference, of which a
///                                         plan takes the first that can_run (interface: PortableFragment)
///   Vec, key_width, ...                   what a lane of the portable fragment works on together, and how wide
///   lane, lane_sum, lane_max, lane_scan,
///   first_lane, broadcast                 collectives over the lanes of a worker
///   sync_worker, arrive, exp2             order scratch within a worker, count arrivals of teams, arithmetic
///   max_workers, min_split_tokens, max_split_tokens, waves, deals_tiles, teams_resident<Fragment>, scratch_level,
///   scratch_limit                         what a planner asks

namespace pagoda::detail {

template <class ExecutionSpace>
struct MachineSelector;

template <class ExecutionSpace>
using MachineOf = typename MachineSelector<ExecutionSpace>::type;

}  // namespace pagoda::detail

#if defined(KOKKOS_ENABLE_CUDA)
#include "backends/cuda/machine.hpp"
#endif
#if defined(KOKKOS_ENABLE_HIP)
#include "backends/hip/machine.hpp"
#endif
#include "backends/host/machine.hpp"

namespace pagoda::detail {

template <class ExecutionSpace>
struct MachineSelector {
  using type = HostMachine<ExecutionSpace>;
};
#if defined(KOKKOS_ENABLE_CUDA)
template <>
struct MachineSelector<Kokkos::Cuda> {
  using type = CudaMachine;
};
#endif
#if defined(KOKKOS_ENABLE_HIP)
template <>
struct MachineSelector<Kokkos::HIP> {
  using type = HipMachine;
};
#endif

}  // namespace pagoda::detail
