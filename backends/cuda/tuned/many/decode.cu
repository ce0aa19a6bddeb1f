// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/tuned/driver.hpp"
#include "backends/cuda/tuned/many/args.hpp"
#include "backends/cuda/tuned/many/decode.hpp"
#include "backends/cuda/tuned/many/shapes.hpp"

#include <algorithm>

namespace pagoda::tuned::many {

namespace {

/// Null where the build has none: it is not for sm_90.
const void* find_kernel([[maybe_unused]] Type type, [[maybe_unused]] int group) {
#if defined(PAGODA_HAS_SM90A)
  return type == Type::bf16 ? kernel_of<Type::bf16>(together(group)) : kernel_of<Type::fp16>(together(group));
#else
  return nullptr;
#endif
}

}  // namespace

const char* why_not(const Problem& p, const Device& d) {
  const int group = p.num_q_heads / p.num_kv_heads;
  if (!d.sm90a) return "latent caches need a card of sm_90, and a build for it";
  if (d.shared_per_block < Shared::bytes) return "the device has too little shared memory";
  if (group > most_rows) return "more than 128 query heads share a kv head";
  if (p.k.data != p.v.data || p.k.token != p.v.token || p.k.head != p.v.head || p.k.page != p.v.page)
    return "values of a latent cache are not the first dims of its keys";
  if (!(p.softmax_scale > 0)) return "softmax_scale is not positive";
  if (p.block_table && p.page_size % 8 != 0) return "page_size is not a multiple of 8";
  return nullptr;
}

std::size_t workspace_bytes(int group, const Device& d) {
  return sizeof(float4) * 2 * std::size_t(d.num_sms) * std::size_t(part_quads(part_rows(group)));
}

void prepare(Type type, int group, const Device& d, void* workspace, CUstream_st* stream) {
  check(cudaFuncSetAttribute(find_kernel(type, group), cudaFuncAttributeMaxDynamicSharedMemorySize, Shared::bytes),
        "shared memory");
  check(cudaMemsetAsync(workspace, 0xff, workspace_bytes(group, d), stream), "cudaMemsetAsync");
}

void decode(const Problem& p, const Device& d, void* workspace, CUstream_st* stream) {
  const int group   = p.num_q_heads / p.num_kv_heads;
  const auto count  = std::int64_t(p.batch) * p.num_kv_heads;
  const Shape shape = spread(count, most_tiles(p, tokens), together(group), d);
  Args a{};
  describe(p, 8, shape.pieces, shape.streams, a);
  a.k_map = map_of(p, p.k, 2, 8);
  a.q_map = map_of(
      {p.q.data, 2, head_dim, group, p.num_kv_heads, p.batch, 2 * p.q.head, 2 * p.q.head * group, 2 * p.q.batch}, 8);
  a.parts = static_cast<float4*>(workspace), a.part_rows = part_rows(group);
  launch(find_kernel(p.type, group), &a, teams_launched(count, p.batch, shape) * together(group), threads,
         Shared::bytes, false, stream);
}

}  // namespace pagoda::tuned::many
