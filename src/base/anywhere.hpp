// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A function for host and device, in headers that do without Kokkos.
#if defined(__CUDACC__) || defined(__HIPCC__)
#define PAGODA_ANYWHERE __host__ __device__ __forceinline__
#else
#define PAGODA_ANYWHERE inline
#endif
