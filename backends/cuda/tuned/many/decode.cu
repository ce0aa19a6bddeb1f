// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/tuned/driver.hpp"
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
  const int group       = p.num_q_heads / p.num_kv_heads;
  const auto row_count  = std::int64_t(p.batch) * p.num_kv_heads;
  const auto most       = p.block_table ? std::int64_t(p.page_size) * p.table_pages : p.page_size;
  const auto most_tiles = (std::min<std::int64_t>(most, p.max_seq_len) + tokens - 1) / tokens;
  const Shape shape     = spread(row_count, most_tiles, together(group), d);
  Args a{};
  a.k_map = map_of(p, p.k, 2, 8);
  a.q_map = map_of(
      {p.q.data, 2, head_dim, group, p.num_kv_heads, p.batch, 2 * p.q.head, 2 * p.q.head * group, 2 * p.q.batch}, 8);
  a.seq_lens = p.seq_lens, a.sequence_ids = p.sequence_ids, a.block_table = p.block_table;
  a.page_indptr = p.page_indptr, a.table_row = static_cast<int>(p.table_row),
  a.table_page = static_cast<int>(p.table_page);
  a.last_page  = static_cast<int>(std::clamp<std::int64_t>(p.table_pages - 1, 0, (std::int64_t(1) << 31) - 1));
  a.has_ids = p.sequence_ids != nullptr, a.has_indptr = p.page_indptr != nullptr;
  a.page_size = p.page_size, a.batch = p.batch, a.group = group;
  a.tiles_per_page = Divisor::of(std::max(p.page_size / 8, 1));  // of eight tokens
  a.num_kv_heads   = Divisor::of(p.num_kv_heads);
  a.pieces         = Divisor::of(shape.pieces);
  a.streams = shape.streams, a.alone = p.batch == 1 && !shape.streams;
  a.q = p.q, a.out = p.out, a.lse = p.lse, a.lse_double = p.lse_double;
  a.lse_batch = p.lse_batch, a.lse_head = p.lse_head;
  a.scale = static_cast<float>(p.softmax_scale * 1.4426950408889634);
  a.parts = static_cast<float4*>(workspace), a.part_rows = part_rows(group);

  cudaLaunchAttribute cooperative{};
  cooperative.id              = cudaLaunchAttributeCooperative;
  cooperative.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim          = dim3(static_cast<unsigned>(teams_launched(row_count, p.batch, shape) * together(group)));
  config.blockDim         = dim3(threads);
  config.dynamicSmemBytes = Shared::bytes;
  config.stream           = stream;
  config.attrs = &cooperative, config.numAttrs = 1;
  void* arguments[] = {&a};
  check(cudaLaunchKernelExC(&config, find_kernel(p.type, group), arguments), "launch");
}

}  // namespace pagoda::tuned::many
