// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/tuned/common/args.hpp"
#include "backends/cuda/tuned/common/driver.hpp"
#include "backends/cuda/tuned/decode.hpp"
#include "backends/cuda/tuned/device_speed.hpp"
#include "backends/cuda/tuned/launch_shape.hpp"
#include "backends/cuda/tuned/tuning.hpp"
#include "backends/cuda/tuned/warp/kernels.hpp"
#include "backends/cuda/tuned/wgmma/launch.hpp"

#include <algorithm>
#include <initializer_list>

namespace pagoda::tuned {

namespace {

bool aligned(const void* p, std::int64_t bytes) { return reinterpret_cast<std::uintptr_t>(p) % bytes == 0; }

bool mappable(const Problem& p, const Cache& c) {
  constexpr std::int64_t far = std::int64_t(1) << 40;
  return aligned(c.data, 16) && c.token % 16 == 0 && c.head % 16 == 0 && c.page % 16 == 0 && c.token > 0 &&
         c.head > 0 && c.page > 0 && c.token < far && c.head < far && c.page < far && p.num_pages > 0;
}

const void* find_kernel(Type type, int head_dim, int group, int warps, int stages, bool maps) {
  switch (type) {
    case Type::fp32:
      return kernel_of<Type::fp32>(head_dim, group, warps, stages, maps);
    case Type::fp16:
      return kernel_of<Type::fp16>(head_dim, group, warps, stages, maps);
    case Type::bf16:
      return kernel_of<Type::bf16>(head_dim, group, warps, stages, maps);
    case Type::fp8_e4m3:
      return kernel_of<Type::fp8_e4m3>(head_dim, group, warps, stages, maps);
    default:
      return kernel_of<Type::fp8_e5m2>(head_dim, group, warps, stages, maps);
  }
}

int tile_bytes(const Problem& p) { return 16 * p.head_dim * bytes_of(p.type); }

/// Compiled as the kernels are.
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
  // Code for an older card runs on a newer one too, but has nothing that the older one lacks.
  cudaFuncAttributes compiled{};
  check(cudaFuncGetAttributes(&compiled, probe), "cudaFuncGetAttributes");
  if (compiled.ptxVersion >= 80) d.sm = std::min(d.sm, compiled.ptxVersion);
  d.num_sms          = ask(cudaDevAttrMultiProcessorCount);
  d.shared_per_sm    = ask(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  d.shared_per_block = ask(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  describe_speed(d, device);
  return d;
}

const char* why_not(const Problem& p, const Device& d) {
  if (d.sm < 80) return "the device is older than sm_80";
  if (is_eight_bits(p.type) && d.sm < 90) return "8-bit keys and values need sm_90";
  const int group     = p.num_q_heads / p.num_kv_heads;
  const bool by_wgmma = wgmma::takes(p);
  if (by_wgmma) {
    if (const char* reason = wgmma::why_not(p, d)) return reason;
  } else {
    if (p.head_dim != p.head_dim_v) return "head_dim and head_dim_v differ";
    if (p.head_dim != 128 && (p.head_dim != 64 || is_eight_bits(p.type)))
      return "head_dim is not one of 64 (not of 8 bits), 128";
    if (p.most_q_tokens > 1) return "several query tokens of a type that is not of 16 bits";
    if (group > 8) return "more than 8 query heads share a kv head, of a type that is not of 16 bits";
    if (p.block_table && p.page_size % 16 != 0) return "page_size is not a multiple of 16";
  }
  const Type q = is_eight_bits(p.type) ? Type::fp16 : p.type;
  if (p.q.type != q) return "q is not of the keys' type (fp16 for 8-bit keys)";
  if (is_eight_bits(p.out.type)) return "out is of 8 bits";
  const int in_16 = 16 / bytes_of(q);
  if (!aligned(p.q.data, 16) || p.q.batch % in_16 != 0 || p.q.head % in_16 != 0)
    return "rows of q do not start on 16 bytes";
  if (!aligned(p.out.data, 16) || p.out.batch % 4 != 0 || p.out.head % 4 != 0)
    return "rows of out do not start on whole vectors";
  if (!mappable(p, p.k) || !mappable(p, p.v)) return "rows of keys or values do not start on 16 bytes, or overlap";
  if (p.block_table && std::max(p.table_entries, p.table_row) >= std::int64_t(1) << 31)
    return "2^31 entries of block_table or more";
  if (std::int64_t(p.batch) * p.num_kv_heads >= std::int64_t(1) << 28) return "2^28 rows or more";
  if (!by_wgmma && blocks_resident(1, tile_bytes(p), p.head_dim, group, d) == 0)
    return "the device has too little shared memory";
  return nullptr;
}

std::size_t workspace_bytes(const Problem& p, const Device& d) {
  if (wgmma::takes(p)) return wgmma::workspace_bytes(p, d);
  const int group = p.num_q_heads / p.num_kv_heads;
  return sizeof(Record) * 2 * std::size_t(d.num_sms) * warps_per_sm * group * (p.head_dim / 4);
}

void prepare(const Problem& p, const Device& d, void* workspace, CUstream_st* stream) {
  if (wgmma::takes(p)) return wgmma::prepare(p, d, workspace, stream);
  const int group = p.num_q_heads / p.num_kv_heads;
  for (const int warps : {8, 4, 2, 1}) {
    const int stages         = block_of(warps, tile_bytes(p), p.head_dim, group, d).stages;
    const void* const kernel = find_kernel(p.type, p.head_dim, group, warps, stages, uses_maps(d));
    if (!kernel) continue;
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, d.shared_per_block),
          "shared memory");
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared),
          "shared memory");
  }
  check(cudaMemsetAsync(workspace, 0xff, workspace_bytes(p, d), stream), "cudaMemsetAsync");
}

Shape shape_of(const Problem& p, const Device& d) {
  const auto rows  = std::int64_t(p.batch) * p.num_kv_heads;
  const auto tiles = most_tiles(p, 16);
  const int group  = p.num_q_heads / p.num_kv_heads;
  if (p.block_table && expects_uneven(p.batch, 16 * tiles, p.num_pages * p.page_size))
    return streamed(rows, tiles, tile_bytes(p), p.head_dim, group, d);
  return spread(rows, tiles, tile_bytes(p), p.head_dim, group, d);
}

bool decode(const Problem& p, const Device& d, void* workspace, CUstream_st* stream) {
  if (wgmma::takes(p)) return wgmma::decode(p, d, workspace, stream);
  return decode_as(p, d, shape_of(p, d), workspace, stream);
}

bool decode_as(const Problem& p, const Device& d, const Shape& shape, void* workspace, CUstream_st* stream) {
  const int group = p.num_q_heads / p.num_kv_heads;
  const bool maps = uses_maps(d);
  const auto rows = std::int64_t(p.batch) * p.num_kv_heads;
  Args a{};
  describe(p, 16, shape.pieces, shape.streams, a);
  if (maps) a.k_map = map_of(p, p.k, bytes_of(p.type), 16), a.v_map = map_of(p, p.v, bytes_of(p.type), 16);
  a.slice   = (group * (p.head_dim / 4) + shape.pieces - 1) / shape.pieces;
  a.early   = p.programmatic && maps && !shape.streams;
  a.records = static_cast<Record*>(workspace);

  const Block block        = block_of(shape.warps, tile_bytes(p), p.head_dim, group, d);
  const void* const kernel = find_kernel(p.type, p.head_dim, group, shape.warps, block.stages, maps);
  return launch(kernel, &a, blocks_launched(rows, p.batch, shape), shape.warps * 32, block.shared, a.early, stream);
}

}  // namespace pagoda::tuned
