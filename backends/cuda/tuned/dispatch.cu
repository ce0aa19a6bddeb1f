// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/tuned/chosen_shape.hpp"
#include "backends/cuda/tuned/common/launch.hpp"
#include "backends/cuda/tuned/decode.hpp"
#include "backends/cuda/tuned/device_speed.hpp"
#include "backends/cuda/tuned/warp/launch.hpp"
#include "backends/cuda/tuned/warp/list_tuning.hpp"
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

/// Whether a problem belongs to the wgmma kernels. Lists of few query rows are faster in the warp kernels.
bool is_wgmma(const Problem& p, const Device& d) { return wgmma::handles(p) && !warp::takes_list(p, d); }

/// Which kernels the decodes of a plan may take. Of a list, only the decode knows.
struct Kernels {
  bool wgmma, warp;
};
Kernels kernels_of(const Problem& p, const Device& d) {
  const bool wgmma = wgmma::handles(p);
  if (!is_list(p)) return {wgmma, !wgmma};
  return {wgmma && d.sm90a, d.sm >= 90 && warp::has_list_kernel(p)};
}

/// Whether rows of outputs start on 16 bytes.
bool starts_on_vectors(const Heads& out) {
  const int in_16_bytes = 128 / bits_of(out.type);
  return aligned(out.data, 16) && out.token % in_16_bytes == 0 && out.head % in_16_bytes == 0;
}

const char* why_no_states(const List& l) {
  if (!l.state_out.data) return nullptr;
  if (is_quantized(l.state_out.type)) return "partial states are of 8 bits or fewer";
  if (!l.state_lse.data) return "partial states without log-sum-exps";
  return starts_on_vectors(l.state_out) ? nullptr : "rows of partial states do not start on 16 bytes";
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
  if (is_quantized(p.type) && d.sm < 90) return "keys and values of 8 bits or fewer need sm_90";
  if (const char* reason = is_wgmma(p, d) ? wgmma::why_not(p, d) : warp::why_not(p)) return reason;
  if (is_list(p)) {
    if (p.options.any()) return "a score option other than sinks, with a list of entries";
    if (d.sm < 90) return "a list of entries needs a card of sm_90";
    if (const char* reason = why_no_states(p.list)) return reason;
  }
  if (p.fixed_splits && (wgmma::handles(p) || is_list(p) || d.sm < 90))
    return "an exactness other than fast, without sm_90, with more than 8 query rows to a kv head or with a list of "
           "entries";
  if (p.fixed_splits && p.options.any()) return "a score option, with an exactness other than fast";
  if (p.fixed_splits && p.block_table && p.page_size % 16 != 0)
    return "page_size is not a multiple of 16, with an exactness other than fast";
  if (p.fixed_splits && p.cu_seqlens_q) return "cu_seqlens_q, with an exactness other than fast";
  if (p.fixed_splits && p.batch > p.max_batch) return "batch is more than max_batch";
  const Type q = query_type(p.type);
  if (p.q.type != q) return "q is not of the keys' type (fp16 for quantized keys, bf16 for fp8_ds_mla)";
  if (is_quantized(p.out.type)) return "out is of 8 bits or fewer";
  const int in_16_bytes = 128 / bits_of(q);
  if (!aligned(p.q.data, 16) || p.q.token % in_16_bytes != 0 || p.q.head % in_16_bytes != 0)
    return "rows of q do not start on 16 bytes";
  if (!aligned(p.out.data, 16) || p.out.token % 4 != 0 || p.out.head % 4 != 0)
    return "rows of out do not start on whole vectors";
  if (!can_be_mapped(p, p.k) || !can_be_mapped(p, p.v))
    return "rows of keys or values do not start on 16 bytes, or overlap";
  if (p.block_table && std::max(p.table_entries, p.table_row) >= std::int64_t(1) << 31)
    return "2^31 entries of block_table or more";
  // Stream-K counts a row as its tiles and up to 45 tiles more (stream_price_tiles), in 32 bits.
  if (std::int64_t(is_list(p) ? p.list.num_entries : p.batch) * p.num_kv_heads >= std::int64_t(1) << 25)
    return "2^25 rows or more";
  if (!is_wgmma(p, d) && !warp::fits(p, d)) return "the device has too little shared memory";
  return nullptr;
}

std::size_t workspace_bytes(const Problem& p, const Device& d) {
  const Kernels may = kernels_of(p, d);
  return std::max(may.wgmma ? wgmma::workspace_bytes(p, d) : 0, may.warp ? warp::workspace_bytes(p, d) : 0);
}

void prepare(const Problem& p, const Device& d, void* workspace, CUstream_st* stream) {
  const Kernels may = kernels_of(p, d);
  if (may.wgmma) wgmma::prepare(p, d);
  if (may.warp) warp::prepare(p, d);
  check(cudaMemsetAsync(workspace, 0xff, workspace_bytes(p, d), stream), "cudaMemsetAsync");  // see empty_sentinel
}

LaunchShape choose_shape(const Problem& p, const Device& d) {
  return is_wgmma(p, d) ? wgmma::choose_shape(p, d) : warp::choose_shape(p, d);
}

bool decode(const Problem& p, const Device& d, void* workspace, CUstream_st* stream) {
  return decode_with(choose_shape(p, d), p, d, workspace, stream);
}

bool decode_with(const LaunchShape& shape, const Problem& p, const Device& d, void* workspace, CUstream_st* stream) {
  return is_wgmma(p, d) ? wgmma::decode_with(shape, p, d, workspace, stream)
                        : warp::decode_with(shape, p, d, workspace, stream);
}

}  // namespace pagoda::tuned
