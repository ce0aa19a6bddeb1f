// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Marks a function for host and device, in headers that do not include Kokkos.
#if defined(__CUDACC__)
#define PAGODA_ANYWHERE __host__ __device__ __forceinline__
#elif defined(__HIPCC__)
#define PAGODA_ANYWHERE __host__ __device__ inline __attribute__((always_inline))
#else
#define PAGODA_ANYWHERE inline
#endif
