// SPDX-License-Identifier: Apache-2.0
// The wgmma kernels for lists, compiled for the host, and their launches.
#include "backends/cuda/tuned/wgmma/launch.hpp"

#include "backends/cuda/tuned/common/launch.hpp"
#include "backends/cuda/tuned/wgmma/grouped/kernels.hpp"
#include "backends/cuda/tuned/wgmma/grouped/mixed_kernel.cuh"
#include "backends/cuda/tuned/wgmma/latent/kernels.hpp"

#include <cstring>
#include <map>

namespace pagoda::tuned::wgmma {
namespace grouped {

/// The shared memory of the block that runs.
alignas(1024) char memory[227 * 1024];

namespace {

/// How to run each kernel with its arguments.
std::map<const void*, std::function<void(const void*)>>& kernels() {
  static std::map<const void*, std::function<void(const void*)>> all;
  return all;
}
template <class Args>
const void* add(void (*kernel)(Args)) {
  const void* const key = reinterpret_cast<const void*>(kernel);
  kernels()[key]        = [kernel](const void* args) { kernel(*static_cast<const Args*>(args)); };
  return key;
}

template <Type T, int D>
const void* list_kernel_for(int warpgroups) {
  return warpgroups == 1 ? add(&list_kernel<T, D, 1>) : add(&list_kernel<T, D, 2>);
}

}  // namespace

template <Type T>
const void* list_kernel_of(int head_dim, int warpgroups) {
  if constexpr (!is_converted(T))
    if (head_dim == 64) return list_kernel_for<T, 64>(warpgroups);
  return list_kernel_for<T, 128>(warpgroups);
}
template <Type T>
const void* mixed_list_kernel_of(int head_dim) {
  return head_dim == 64 ? add(&mixed_list_kernel<T, 64, mixed_stages(64)>)
                        : add(&mixed_list_kernel<T, 128, mixed_stages(128)>);
}
template const void* list_kernel_of<Type::fp16>(int, int);
template const void* list_kernel_of<Type::bf16>(int, int);
template const void* list_kernel_of<Type::fp8_e4m3>(int, int);
template const void* list_kernel_of<Type::fp8_e5m2>(int, int);
template const void* list_kernel_of<Type::int8>(int, int);
template const void* mixed_list_kernel_of<Type::fp16>(int);
template const void* mixed_list_kernel_of<Type::bf16>(int);

// Kernels for batches are not compiled here.
template <Type T>
const void* kernel_of(int, int, Instance) {
  return nullptr;
}
template <Type T>
const void* option_kernel_of(int, int, Instance) {
  return nullptr;
}
template const void* kernel_of<Type::fp16>(int, int, Instance);
template const void* kernel_of<Type::bf16>(int, int, Instance);
template const void* option_kernel_of<Type::fp16>(int, int, Instance);
template const void* option_kernel_of<Type::bf16>(int, int, Instance);

}  // namespace grouped

namespace latent {
template <Type T>
const void* kernel_of(int, Instance, bool) {
  return nullptr;
}
template const void* kernel_of<Type::fp16>(int, Instance, bool);
template const void* kernel_of<Type::bf16>(int, Instance, bool);
template const void* kernel_of<Type::fp8_ds_mla>(int, Instance, bool);
}  // namespace latent
}  // namespace pagoda::tuned::wgmma

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void** arguments) {
  namespace grouped = pagoda::tuned::wgmma::grouped;
  const auto run    = grouped::kernels().at(kernel);
  pagoda::simt::Grid(static_cast<int>(config->gridDim.x), static_cast<int>(config->blockDim.x), grouped::memory,
                     config->dynamicSmemBytes)
      .run([&] { run(arguments[0]); });
  return cudaSuccess;
}

namespace pagoda::tuned {

/// A small device: few blocks share an entry.
Device Device::current() {
  Device d{};
  d.sm = 90, d.sm90a = true, d.num_sms = 4, d.shared_per_block = sizeof wgmma::grouped::memory;
  return d;
}
const char* why_not(const Problem& p, const Device& d) {
  return wgmma::handles(p) ? wgmma::why_not(p, d) : "not a list of the wgmma kernels";
}
std::size_t workspace_bytes(const Problem& p, const Device& d) { return wgmma::workspace_bytes(p, d); }
void prepare(const Problem& p, const Device& d, void* workspace, CUstream_st*) {
  wgmma::prepare(p, d);
  std::memset(workspace, 0xff, workspace_bytes(p, d));  // see empty_sentinel
}
bool decode(const Problem& p, const Device& d, void* workspace, CUstream_st* stream) {
  return wgmma::decode_with(wgmma::choose_shape(p, d), p, d, workspace, stream);
}

}  // namespace pagoda::tuned
