// SPDX-License-Identifier: Apache-2.0
#pragma once

#if defined(__HIP__)
#include <hip/hip_runtime_api.h>
#define PAGODA_GPU(name) hip##name  ///< the runtime's function or type: cudaMalloc or hipMalloc
#else
#include <cuda_runtime_api.h>
#define PAGODA_GPU(name) cuda##name
#endif

#include <stdexcept>
#include <string>

/// The runtime of the GPU that a unit is compiled for. What benchmarks use of CUDA's and HIP's differs in the prefix of
/// its names only.
namespace pagoda::bench::gpu {

using Error  = PAGODA_GPU(Error_t);
using Stream = PAGODA_GPU(Stream_t);

inline void check(Error error, const char* what) {
  if (error != PAGODA_GPU(Success))
    throw std::runtime_error(std::string(what) + ": " + PAGODA_GPU(GetErrorString)(error));
}

/// For calls whose error nobody can be told: in destructors, and while another error is thrown.
inline void ignore(Error) {}

}  // namespace pagoda::bench::gpu
