// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/tuned/chosen_shape.hpp"
#include "backends/cuda/tuned/common/launch.hpp"
#include "backends/cuda/tuned/decode.hpp"
#include "backends/cuda/tuned/device_speed.hpp"
#include "backends/cuda/tuned/warp/launch.hpp"
#include "backends/cuda/tuned/wgmma/launch.hpp"

#include <algorithm>

/// Checks what all kernels require, and passes problems to the wgmma kernels or to the warp kernels.
namespace pagoda::tuned {

namespace {

bool aligned(const void* p, std::int64_t bytes) { return reinterpret_cast<std::uintptr_t>(p) % bytes == 0; }

/// Whether a tensor map can describe the keys or values.
bool can_be_mapped(const Problem& p, const Cache& c) {
  constexpr std::int64_t max_stride = std::int64_t(1) << 40;
  return aligned(c.data, 16) && c.token % 16 == 0 && c.head % 16 == 0 && c.page % 16 == 0 && c.token > 0 &&
         c.head > 0 && c.page > 0 && c.token < max_stride && c.head < max_stride && c.page < max_stride &&
         p.num_pages > 0;
}

/// Reports the architecture for which this file, and so the kernels, were compiled.
__global__ void probe() {}

}  // namespace

Device Device::current() {
  int device = 0, major = 0, minor = 0;
  Device d{};
  const auto ask = [&](cudaDeviceAttr what) {
    int value = 0;
    check(cudaDeviceGetAttribute(&value, what, device), "cudaDeviceGetAttribute");
    return value;
  };
  check(cudaGetDevice(&device), "cudaGetDevice");
  major = ask(cudaDevAttrComputeCapabilityMajor), minor = ask(cudaDevAttrComputeCapabilityMinor);
  d.sm = 10 * major + minor;
#if defined(PAGODA_HAS_SM90A)
  d.sm90a = d.sm == 90;
#endif
  // Code for an older card also runs on a newer one, but has only the features of the older one.
  cudaFuncAttributes compiled{};
  check(cudaFuncGetAttributes(&compiled, probe), "cudaFuncGetAttributes");
  if (compiled.ptxVersion >= 80) d.sm = std::min(d.sm, compiled.ptxVersion);
  d.num_sms          = ask(cudaDevAttrMultiProcessorCount);
  d.shared_per_sm    = ask(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  d.shared_per_block = ask(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  set_speed(d, device);
  return d;
}

const char* why_not(const Problem& p, const Device& d) {
  if (d.sm < 80) return "the device is older than sm_80";
  if (is_eight_bits(p.type) && d.sm < 90) return "8-bit keys and values need sm_90";
  if (const char* reason = wgmma::handles(p) ? wgmma::why_not(p, d) : warp::why_not(p)) return reason;
  if (p.fixed_splits && (wgmma::handles(p) || d.sm < 90))
    return "an exactness other than fast, without sm_90 or with more than 8 query rows to a kv head";
  if (p.fixed_splits && p.options.any()) return "a score option, with an exactness other than fast";
  if (p.fixed_splits && p.batch > p.max_batch) return "batch is more than max_batch";
  const Type q = is_eight_bits(p.type) ? Type::fp16 : p.type;
  if (p.q.type != q) return "q is not of the keys' type (fp16 for 8-bit keys)";
  if (is_eight_bits(p.out.type)) return "out is of 8 bits";
  const int in_16_bytes = 16 / bytes_of(q);
  if (!aligned(p.q.data, 16) || p.q.token % in_16_bytes != 0 || p.q.head % in_16_bytes != 0)
    return "rows of q do not start on 16 bytes";
  if (!aligned(p.out.data, 16) || p.out.token % 4 != 0 || p.out.head % 4 != 0)
    return "rows of out do not start on whole vectors";
  if (!can_be_mapped(p, p.k) || !can_be_mapped(p, p.v))
    return "rows of keys or values do not start on 16 bytes, or overlap";
  if (p.block_table && std::max(p.table_entries, p.table_row) >= std::int64_t(1) << 31)
    return "2^31 entries of block_table or more";
  if (std::int64_t(is_list(p) ? p.list.num_entries : p.batch) * p.num_kv_heads >= std::int64_t(1) << 28)
    return "2^28 rows or more";
  if (!wgmma::handles(p) && !warp::fits(p, d)) return "the device has too little shared memory";
  return nullptr;
}

std::size_t workspace_bytes(const Problem& p, const Device& d) {
  return wgmma::handles(p) ? wgmma::workspace_bytes(p, d) : warp::workspace_bytes(p, d);
}

void prepare(const Problem& p, const Device& d, void* workspace, CUstream_st* stream) {
  wgmma::handles(p) ? wgmma::prepare(p, d) : warp::prepare(p, d);
  check(cudaMemsetAsync(workspace, 0xff, workspace_bytes(p, d), stream), "cudaMemsetAsync");  // see empty_sentinel
}

LaunchShape choose_shape(const Problem& p, const Device& d) {
  return wgmma::handles(p) ? wgmma::choose_shape(p, d) : warp::choose_shape(p, d);
}

bool decode(const Problem& p, const Device& d, void* workspace, CUstream_st* stream) {
  return decode_with(choose_shape(p, d), p, d, workspace, stream);
}

bool decode_with(const LaunchShape& shape, const Problem& p, const Device& d, void* workspace, CUstream_st* stream) {
  return wgmma::handles(p) ? wgmma::decode_with(shape, p, d, workspace, stream)
                           : warp::decode_with(shape, p, d, workspace, stream);
}

}  // namespace pagoda::tuned
