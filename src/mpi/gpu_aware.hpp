// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>
#include <Kokkos_Core.hpp>

#if defined(OPEN_MPI) && __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

namespace pagoda::mpi {

/// Whether MPI says that it accepts device memory of this build's GPUs: Open MPI and MPICH have a call for it. Of other
/// implementations the caller knows (ContextParallelOptions::gpu_aware).
inline bool mpi_takes_device_memory() {
#if defined(KOKKOS_ENABLE_CUDA) && defined(MPIX_CUDA_AWARE_SUPPORT)
  return MPIX_Query_cuda_support() == 1;
#elif defined(KOKKOS_ENABLE_HIP) && defined(OMPI_HAVE_MPI_EXT_ROCM) && OMPI_HAVE_MPI_EXT_ROCM
  return MPIX_Query_rocm_support() == 1;
#elif defined(KOKKOS_ENABLE_CUDA) && defined(MPIX_GPU_SUPPORT_CUDA)
  int takes = 0;
  return MPIX_GPU_query_support(MPIX_GPU_SUPPORT_CUDA, &takes) == MPI_SUCCESS && takes;
#elif defined(KOKKOS_ENABLE_HIP) && defined(MPIX_GPU_SUPPORT_HIP)
  int takes = 0;
  return MPIX_GPU_query_support(MPIX_GPU_SUPPORT_HIP, &takes) == MPI_SUCCESS && takes;
#else
  return false;
#endif
}

}  // namespace pagoda::mpi
