// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

struct CUstream_st;

/// ThreeKernels (three_kernels.hpp) in raw CUDA, as the study wrote it: fp32, kernels over accessor types. The baseline
/// of the hand-tuned kernels. Do not tune it.
///
/// Source: Heidari et al., "Efficient Decode Attention: Flash-Decoding with Paged KV Caches", section III.A.b (parallel
/// GPU baseline), listing 1 (accessors) and section IV.
namespace pagoda::bench::cuda {

/// Contiguous KV rows; distances in elements.
struct CacheRows {
  const float* data;
  std::int64_t page, token, head;
};

/// Page = sequence.
struct ContiguousRows {
  CacheRows k, v;
};

struct PagedRows {
  CacheRows k, v;
  int page_size;
  const int* block_table;
  const int* page_indptr;  ///< where a sequence's pages begin in block_table; null: at sequence * table_row
  std::int64_t table_row, table_page;
};

/// One query token for each batch entry. Device pointers; distances in elements, dims side by side.
struct Queries {
  int batch, num_q_heads, num_kv_heads, head_dim, head_dim_v;
  int max_seq_len;  ///< longest sequence
  float softmax_scale;
  const int* seq_lens;      ///< [sequences]
  const int* sequence_ids;  ///< [batch]; null: batch entry b is sequence b
  const float* q;
  std::int64_t q_batch, q_head;
  float* out;
  std::int64_t out_batch, out_head;
};

/// Bytes of `scores`, for all tokens of all rows.
constexpr std::size_t scores_bytes(const Queries& q) {
  return sizeof(float) * static_cast<std::size_t>(q.batch) * static_cast<std::size_t>(q.num_q_heads) *
         static_cast<std::size_t>(q.max_seq_len);
}

/// Asynchronous on the stream; can be captured in a graph. The output of an empty sequence is 0. Throws
/// std::runtime_error on CUDA errors. KV: ContiguousRows or PagedRows.
template <class KV>
void three_kernels(const Queries& queries, const KV& kv, float* scores, CUstream_st* stream);

}  // namespace pagoda::bench::cuda
