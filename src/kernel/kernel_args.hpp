// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/plan.hpp>
#include <pagoda/problem.hpp>

#include <Kokkos_Core.hpp>

#include <cstdint>

namespace pagoda::detail {

/// One piece of work: query rows of one tile over a range of visible tokens, and where the result goes.
struct WorkItem {
  int batch;  ///< batch entry
  int kv_head;
  int row_tile;    ///< which tile of the entry's query rows (query token x head of the group)
  int begin, end;  ///< visible-token indices
  int partial;     ///< slot of the partial state; -1: the rows are whole and go to the output
};

/// One tile of query rows whose pieces lie in consecutive partial states.
struct MergeItem {
  int batch, kv_head, row_tile, first_partial, count;
};

/// Written by the planner on the device.
struct WorkCounts {
  int items, merges;
};

/// A strided array in device memory, strides in elements.
struct DeviceArray {
  void* data;
  std::int64_t stride0, stride1, stride2;
  DType type;
};

KOKKOS_INLINE_FUNCTION double load_as_double(const void* data, DType type, std::int64_t i) {
  switch (type) {
    case DType::fp64:
      return static_cast<const double*>(data)[i];
    case DType::fp32:
      return static_cast<const float*>(data)[i];
    case DType::fp16:
      return static_cast<const half_t*>(data)[i];
    default:
      return static_cast<const bfloat16_t*>(data)[i];
  }
}

KOKKOS_INLINE_FUNCTION float load_as_float(const void* data, DType type, std::int64_t i) {
  switch (type) {
    case DType::fp64:
      return static_cast<float>(static_cast<const double*>(data)[i]);
    case DType::fp32:
      return static_cast<const float*>(data)[i];
    case DType::fp16:
      return static_cast<const half_t*>(data)[i];
    default:
      return static_cast<const bfloat16_t*>(data)[i];
  }
}

/// Element i as the accumulator type. Queries and outputs are few, so their type is a run-time matter.
template <class Acc>
KOKKOS_INLINE_FUNCTION Acc load_element(const void* data, DType type, std::int64_t i) {
  if constexpr (std::is_same_v<Acc, double>) {
    return load_as_double(data, type, i);
  } else {
    return load_as_float(data, type, i);
  }
}

template <class Acc>
KOKKOS_INLINE_FUNCTION void store_element(void* data, DType type, std::int64_t i, Acc value) {
  switch (type) {
    case DType::fp64:
      static_cast<double*>(data)[i] = value;
      break;
    case DType::fp32:
      static_cast<float*>(data)[i] = static_cast<float>(value);
      break;
    case DType::fp16:
      static_cast<half_t*>(data)[i] = half_t(static_cast<float>(value));
      break;
    default:
      static_cast<bfloat16_t*>(data)[i] = bfloat16_t(static_cast<float>(value));
      break;
  }
}

/// Everything the kernels of one decode read, by value. Launches carry HintLightWeight, with which Kokkos hands
/// functors of up to 4096 bytes to the device as plain kernel arguments; otherwise, from 512 bytes on with their
/// policy, they would go through constant memory, which costs a wait and which a graph capture refuses.
struct KernelArgs {
  // Keys and values: strides of (page, token in page, kv head, dim), in elements.
  const void* k;
  const void* v;
  std::int64_t k_page, k_token, k_head, k_dim;
  std::int64_t v_page, v_token, v_head, v_dim;
  const int* table;        ///< null: contiguous, page = sequence
  const int* page_indptr;  ///< null: dense table
  const int* seq_lens;
  const int* sequence_ids;  ///< null: batch entry b is sequence b
  std::int64_t table_row_stride, table_page_stride;
  int page_size, num_pages;
  bool paged;

  // Queries, outputs.
  DeviceArray q, out, lse;
  const int* cu_seqlens_q;
  int uniform_query_len;

  // Shape.
  int batch, num_kv_heads, group, head_dim, head_dim_v;
  double softmax_scale;
  ScoreOptions score;

  // Plan and workspace.
  int row_tile, target_items, max_cuts, min_piece, max_piece;
  WorkCounts* counts;
  WorkItem* items;
  MergeItem* merges;
  void* partial_lse;  ///< accumulator type, [partial][row of the tile], natural logarithm
  void* partial_out;  ///< accumulator type, [partial][row of the tile][head_dim_v], normalised

  KOKKOS_FUNCTION int sequence(int b) const { return sequence_ids ? sequence_ids[b] : b; }
  KOKKOS_FUNCTION int seq_len(int b) const { return seq_lens[sequence(b)]; }
  KOKKOS_FUNCTION int query_begin(int b) const { return cu_seqlens_q ? cu_seqlens_q[b] : b * uniform_query_len; }
  KOKKOS_FUNCTION int query_len(int b) const {
    return cu_seqlens_q ? cu_seqlens_q[b + 1] - cu_seqlens_q[b] : uniform_query_len;
  }
  /// Page that holds the page_index-th run of page_size tokens of a sequence.
  KOKKOS_FUNCTION int page(int sequence, int page_index) const {
    if (!paged) return sequence;
    const std::int64_t row = page_indptr ? page_indptr[sequence] : sequence * table_row_stride;
    const int id           = table[row + page_index * table_page_stride];
#if defined(PAGODA_DEBUG_BOUNDS)
    if (id < 0 || id >= num_pages) Kokkos::abort("pagoda::decode: block_table holds a page id outside the pool");
#endif
    return id;
  }
};
static_assert(sizeof(KernelArgs) <= 512, "a kernel argument, read by every team: keep it small");

}  // namespace pagoda::detail
