// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>
#include <vector_types.h>
#include <cstddef>

// What launches of the hand-tuned kernels ask of CUDA's runtime.

#define CUDART_VERSION 13000

enum cudaError_t { cudaSuccess, cudaErrorCooperativeLaunchTooLarge, cudaErrorInvalidClusterSize };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize, cudaFuncAttributePreferredSharedMemoryCarveout };
enum { cudaSharedmemCarveoutMaxShared = 100, cudaEnableDefault = 0 };
enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess };
enum cudaLaunchAttributeID {
  cudaLaunchAttributeCooperative,
  cudaLaunchAttributeProgrammaticStreamSerialization,
  cudaLaunchAttributeClusterDimension
};

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned extent_x = 1, unsigned extent_y = 1, unsigned extent_z = 1)
      : x(extent_x), y(extent_y), z(extent_z) {}
};
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct {
    int cooperative, programmaticStreamSerializationAllowed;
    dim3 clusterDim;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  std::size_t dynamicSmemBytes;
  struct CUstream_st* stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

inline const char* cudaGetErrorString(cudaError_t) { return "none"; }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
inline cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** function, unsigned, unsigned long long,
                                                    cudaDriverEntryPointQueryResult*) {
  *function = reinterpret_cast<void*>(&cuTensorMapEncodeTiled);
  return cudaSuccess;
}
/// Runs the kernel (kernels.cpp).
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void** arguments);
