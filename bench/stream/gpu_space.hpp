// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Kokkos_Core.hpp>

#include <type_traits>

#if defined(KOKKOS_ENABLE_CUDA) || defined(KOKKOS_ENABLE_HIP)
#define PAGODA_BENCH_GPU  ///< this build has gpu_read.hpp and gpu_graph.hpp
#include "bench/stream/gpu_graph.hpp"
#include "bench/stream/gpu_read.hpp"

/// The execution space whose calls are timed in graphs of its runtime.
namespace pagoda::bench::gpu {

#if defined(KOKKOS_ENABLE_CUDA)
using Space = Kokkos::Cuda;
inline Stream stream_of(const Space& exec) { return exec.cuda_stream(); }
#else
using Space = Kokkos::HIP;
inline Stream stream_of(const Space& exec) { return exec.hip_stream(); }
#endif
template <class ExecutionSpace>
inline constexpr bool has_graphs = std::is_same_v<ExecutionSpace, Space>;

}  // namespace pagoda::bench::gpu
#endif
