// SPDX-License-Identifier: Apache-2.0
// The kernels for lists, compiled for the host, and their launches. Other kernels are null.
#include "backends/cuda/tuned/warp/kernels.hpp"
#include "backends/cuda/tuned/common/launch.hpp"
#include "backends/cuda/tuned/device_speed.hpp"
#include "backends/cuda/tuned/warp/list_kernel.cuh"
#include "backends/cuda/tuned/wgmma/grouped/kernels.hpp"
#include "backends/cuda/tuned/wgmma/grouped/mixed_kernel.cuh"
#include "backends/cuda/tuned/wgmma/latent/kernels.hpp"

#include <map>

namespace pagoda::tuned {

namespace {

/// A kernel: how to run it with its arguments, and where it expects the shared memory of the block that runs.
struct HostKernel {
  std::function<void(const void*)> run;
  char* shared;
};
std::map<const void*, HostKernel>& kernels() {
  static std::map<const void*, HostKernel> all;
  return all;
}
template <class Args>
const void* add(void (*kernel)(Args), char* shared) {
  const void* const key = reinterpret_cast<const void*>(kernel);
  kernels()[key]        = {[kernel](const void* args) { kernel(*static_cast<const Args*>(args)); }, shared};
  return key;
}
constexpr std::size_t most_shared = 227 * 1024;

}  // namespace

namespace wgmma::grouped {

alignas(1024) char memory[most_shared];  // what the kernels declare as extern __shared__

template <Type T, int D>
const void* list_kernel_for(int warpgroups) {
  return warpgroups == 1 ? add(&list_kernel<T, D, 1>, memory) : add(&list_kernel<T, D, 2>, memory);
}
template <Type T>
const void* list_kernel_of(int head_dim, int warpgroups) {
  if constexpr (!is_converted(T))
    if (head_dim == 64) return list_kernel_for<T, 64>(warpgroups);
  return list_kernel_for<T, 128>(warpgroups);
}
template <Type T>
const void* mixed_list_kernel_of(int head_dim) {
  return head_dim == 64 ? add(&mixed_list_kernel<T, 64, mixed_stages(64)>, memory)
                        : add(&mixed_list_kernel<T, 128, mixed_stages(128)>, memory);
}
template <Type T>
const void* kernel_of(int, int, Instance) {
  return nullptr;
}
template <Type T>
const void* option_kernel_of(int, int, Instance) {
  return nullptr;
}

template const void* list_kernel_of<Type::fp16>(int, int);
template const void* list_kernel_of<Type::bf16>(int, int);
template const void* list_kernel_of<Type::fp8_e4m3>(int, int);
template const void* list_kernel_of<Type::fp8_e5m2>(int, int);
template const void* list_kernel_of<Type::int8>(int, int);
template const void* mixed_list_kernel_of<Type::fp16>(int);
template const void* mixed_list_kernel_of<Type::bf16>(int);
template const void* kernel_of<Type::fp16>(int, int, Instance);
template const void* kernel_of<Type::bf16>(int, int, Instance);
template const void* option_kernel_of<Type::fp16>(int, int, Instance);
template const void* option_kernel_of<Type::bf16>(int, int, Instance);

}  // namespace wgmma::grouped

namespace wgmma::latent {

template <Type T>
const void* kernel_of(int, Instance, bool) {
  return nullptr;
}
template const void* kernel_of<Type::fp16>(int, Instance, bool);
template const void* kernel_of<Type::bf16>(int, Instance, bool);
template const void* kernel_of<Type::fp8_ds_mla>(int, Instance, bool);

}  // namespace wgmma::latent

namespace warp {

alignas(1024) char memory[most_shared];  // what the kernels declare as extern __shared__

template <Type T, int D>
const void* list_kernel_for() {
  return add(&list_kernel<T, D, list_stages(Tile<T, D>::bytes)>, memory);
}
template <Type T>
const void* list_kernel_of(int head_dim) {
  if constexpr (T == Type::fp32 || T == Type::int4)
    return nullptr;
  else if constexpr (!is_quantized(T))
    return head_dim == 64 ? list_kernel_for<T, 64>() : list_kernel_for<T, 128>();
  else
    return list_kernel_for<T, 128>();
}
template <Type T>
const void* kernel_of(int, int, int, int, bool, int) {
  return nullptr;
}
template <Type T>
const void* option_kernel_of(int, int, int, int, bool, int) {
  return nullptr;
}
template <Type T>
const void* ragged_kernel_of(int, int, int, int, bool, bool) {
  return nullptr;
}
template <Type T>
const void* fixed_kernel_of(int, int) {
  return nullptr;
}

#define PAGODA_KERNELS(T)                                                         \
  template const void* list_kernel_of<Type::T>(int);                              \
  template const void* kernel_of<Type::T>(int, int, int, int, bool, int);         \
  template const void* option_kernel_of<Type::T>(int, int, int, int, bool, int);  \
  template const void* ragged_kernel_of<Type::T>(int, int, int, int, bool, bool); \
  template const void* fixed_kernel_of<Type::T>(int, int);
PAGODA_KERNELS(fp32)
PAGODA_KERNELS(fp16)
PAGODA_KERNELS(bf16)
PAGODA_KERNELS(fp8_e4m3)
PAGODA_KERNELS(fp8_e5m2)
PAGODA_KERNELS(int8)
PAGODA_KERNELS(int4)
#undef PAGODA_KERNELS

}  // namespace warp

void set_speed(Device& d, int) { d.speed = {}; }

}  // namespace pagoda::tuned

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void** arguments) {
  const auto& [run, shared] = pagoda::tuned::kernels().at(kernel);
  pagoda::simt::Grid(static_cast<int>(config->gridDim.x), static_cast<int>(config->blockDim.x), shared,
                     config->dynamicSmemBytes)
      .run([&] { run(arguments[0]); });
  return cudaSuccess;
}
