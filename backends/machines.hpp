// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/kernel/machine.hpp"

#if defined(KOKKOS_ENABLE_CUDA)
#include "backends/cuda/machine.hpp"
#endif
#if defined(KOKKOS_ENABLE_HIP)
#include "backends/hip/machine.hpp"
#endif
#include "backends/host/machine.hpp"

#include <Kokkos_Core.hpp>

/// The machine of each execution space. Whoever instantiates a kernel includes this file.
namespace pagoda::detail {

template <class ExecutionSpace>
struct MachineSelector {
  using type = HostMachine<ExecutionSpace>;
};
static_assert(Machine<MachineOf<Kokkos::DefaultHostExecutionSpace>>);

#if defined(KOKKOS_ENABLE_CUDA)
template <>
struct MachineSelector<Kokkos::Cuda> {
  using type = CudaMachine;
};
static_assert(Machine<CudaMachine>);
#endif

#if defined(KOKKOS_ENABLE_HIP)
template <>
struct MachineSelector<Kokkos::HIP> {
  using type = HipMachine;
};
static_assert(Machine<HipMachine>);
#endif

}  // namespace pagoda::detail
