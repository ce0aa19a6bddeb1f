// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Kokkos_Core.hpp>

/// The machine trait of each execution space. The generic kernels know their machine only through it:
///   Member, Policy             how a team is launched (`policy(exec, league, workers)`, scratch set by the caller)
///   Fragment<T, R, Wide>       how tiles are read and multiplied (interface: PortableFragment)
///   Vec, key_width, ...        what a lane works on together, and how wide
///   sync_worker                orders a worker's scratch writes before its reads
///   max_workers, min_piece, max_piece, teams_resident(exec, workers), scratch_level, scratch_limit()
///                              what a planner asks

/// Unrolls a loop on a GPU, where it sets how many loads are in flight; a host compiler knows better.
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
#define PAGODA_PRAGMA(text) _Pragma(#text)
#define PAGODA_UNROLL(n) PAGODA_PRAGMA(unroll n)
#else
#define PAGODA_UNROLL(n)
#endif

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
