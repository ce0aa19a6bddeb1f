// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/common/args.hpp"
#include "backends/cuda/tuned/common/cost_model.hpp"
#include "backends/cuda/tuned/common/list_args.hpp"
#include "backends/cuda/tuned/decode.hpp"

#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numbers>
#include <stdexcept>
#include <string>

/// What the launchers of all kernels ask of CUDA.
namespace pagoda::tuned {

inline void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess)
    throw std::runtime_error(std::string("pagoda::tuned: ") + what + ": " + cudaGetErrorString(error));
}

/// Tensor maps come from the driver, which the library is not linked to.
using EncodeTensorMap = decltype(&cuTensorMapEncodeTiled);
inline EncodeTensorMap encode_tensor_map() {
  static const EncodeTensorMap encode = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found),
          "cuTensorMapEncodeTiled");
#else
    check(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &entry, cudaEnableDefault, &found),
          "cuTensorMapEncodeTiled");
#endif
    if (!entry) throw std::runtime_error("pagoda::tuned: the driver has no cuTensorMapEncodeTiled");
    return reinterpret_cast<EncodeTensorMap>(entry);
  }();
  return encode;
}

/// Dense rows of `dims` elements, indexed [outer][head][row]. Strides are in bytes and unused where the extent is 1.
struct RowArray {
  const void* data;
  int element_bytes, dims;
  std::int64_t rows, heads, outer;
  std::int64_t row_stride, head_stride, outer_stride;
};

/// A tensor map that sees each row as runs of 128 bytes. A box is box_rows rows of one head. In shared memory it lies
/// run after run, 128 bytes of each row, swizzled. Rows beyond the last are zeros.
inline CUtensorMap encode_map(const void* data, int element_bytes, const cuuint64_t (&dims)[5],
                              const cuuint64_t (&strides)[4], const cuuint32_t (&box)[5]) {
  const cuuint32_t steps[5]      = {1, 1, 1, 1, 1};
  const CUtensorMapDataType type = element_bytes == 4   ? CU_TENSOR_MAP_DATA_TYPE_UINT32
                                   : element_bytes == 2 ? CU_TENSOR_MAP_DATA_TYPE_UINT16
                                                        : CU_TENSOR_MAP_DATA_TYPE_UINT8;
  CUtensorMap map;
  const CUresult result = encode_tensor_map()(&map, type, 5, const_cast<void*>(data), dims, strides, box, steps,
                                              CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                              CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    throw std::runtime_error("pagoda::tuned: the driver refuses a tensor map (CUresult " + std::to_string(result) +
                             ")");
  return map;
}
inline cuuint64_t stride_of(std::int64_t bytes, std::int64_t extent) { return cuuint64_t(extent > 1 ? bytes : 128); }

inline CUtensorMap make_tensor_map(const RowArray& a, int box_rows) {
  const cuuint64_t run = 128 / a.element_bytes, runs = a.dims / run;
  return encode_map(
      a.data, a.element_bytes, {run, cuuint64_t(a.rows), runs, cuuint64_t(a.heads), cuuint64_t(a.outer)},
      {stride_of(a.row_stride, a.rows), 128, stride_of(a.head_stride, a.heads), stride_of(a.outer_stride, a.outer)},
      {cuuint32_t(run), cuuint32_t(box_rows), cuuint32_t(runs), 1, 1});
}
/// The keys or values of a problem.
inline CUtensorMap make_tensor_map(const Problem& p, const Cache& c, int box_tokens) {
  return make_tensor_map(
      {c.data, bits_of(p.type) / 8, p.head_dim, p.page_size, p.num_kv_heads, p.num_pages, c.token, c.head, c.page},
      box_tokens);
}

/// The map that rows of keys or values allow.
inline EightsMap eights_map_of(const Problem& p, const Cache& c) {
  const std::int64_t row = p.head_dim * bits_of(p.type) / 8;
  if (p.page_size % 8 != 0 || row % 128 != 0) return EightsMap::none;
  if (p.num_kv_heads == 1 || c.head == row) return EightsMap::runs_heads;
  if (p.num_pages <= 1 || c.page == c.head * p.num_kv_heads) return EightsMap::heads_pages;
  return EightsMap::none;
}
inline CUtensorMap make_eights_map(const Problem& p, const Cache& c, EightsMap order, int box_eights) {
  const int bytes      = bits_of(p.type) / 8;
  const cuuint64_t run = 128 / bytes, runs = p.head_dim / run, eights = p.page_size / 8, heads = p.num_kv_heads,
                   pages = p.num_pages;
  const bool of_heads    = order == EightsMap::runs_heads;
  const cuuint64_t outer = of_heads ? pages : pages * heads;
  return encode_map(c.data, bytes, {run, 8, of_heads ? runs * heads : runs, eights, outer},
                    {cuuint64_t(c.token), 128, cuuint64_t(8 * c.token),
                     of_heads ? stride_of(c.page, p.num_pages) : stride_of(c.head, p.num_kv_heads)},
                    {cuuint32_t(run), 8, cuuint32_t(runs), cuuint32_t(box_eights), 1});
}

/// Tiles of the longest sequence that there may be.
inline std::int64_t max_tiles(const Problem& p, int tile_tokens) {
  const auto capacity = p.block_table ? std::int64_t(p.page_size) * p.table_pages : p.page_size;
  return (std::min<std::int64_t>(capacity, p.max_seq_len) + tile_tokens - 1) / tile_tokens;
}

/// Sets the arguments that all kernels have. copy_tokens: tokens that one copy loads, all of one page. heads_at_once:
/// kv heads that a warp reads at once.
inline void set_args(const Problem& p, const LaunchShape& shape, int copy_tokens, Args& a, int heads_at_once = 1) {
  const auto split_scales = [](const Cache& from, Cache& cache, TokenScales& scales) {
    cache = from;
    if (!has_token_scales(from)) return;
    cache.scale       = nullptr;
    const auto narrow = [](std::int64_t stride) { return static_cast<std::uint32_t>(4 * stride); };
    scales            = {from.scale, narrow(from.scale_page), narrow(from.scale_token), narrow(from.scale_head)};
  };
  split_scales(p.k, a.k, a.k_scales), split_scales(p.v, a.v, a.v_scales);
  a.seq_lens = p.seq_lens, a.sequence_ids = p.sequence_ids, a.block_table = p.block_table;
  a.page_indptr = p.page_indptr, a.table_row = static_cast<int>(p.table_row),
  a.table_page = static_cast<int>(p.table_page);
  a.last_page  = static_cast<int>(std::clamp<std::int64_t>(p.table_pages - 1, 0, (std::int64_t(1) << 31) - 1));
  a.has_ids = p.sequence_ids != nullptr, a.has_indptr = p.page_indptr != nullptr;
  a.page_size = p.page_size, a.batch = p.batch, a.group_size = p.num_q_heads / p.num_kv_heads * heads_at_once;
  a.kv_group        = Divisor::of(p.num_q_heads / p.num_kv_heads);
  a.copies_per_page = Divisor::of(std::max(p.page_size / copy_tokens, 1));
  a.num_kv_heads    = Divisor::of(p.num_kv_heads / heads_at_once);
  a.num_splits      = Divisor::of(shape.num_splits);
  a.stream_k = shape.stream_k, a.single_sequence = p.batch == 1 && !shape.stream_k;
  a.cu_seqlens_q = p.cu_seqlens_q;
  a.q = p.q, a.out = p.out, a.lse = p.lse, a.lse_double = p.lse_double;
  a.lse_token = p.lse_token, a.lse_head = p.lse_head;
  a.scale = static_cast<float>(p.softmax_scale * std::numbers::log2e);
}

/// The same for a list. copy_tokens: tokens that one copy loads.
template <class Base>
void set_list_args(const Problem& p, const LaunchShape& shape, int copy_tokens, ListArgsOf<Base>& a) {
  const List& l = p.list;
  set_args(p, shape, copy_tokens, a);
  a.batch = l.num_entries;
  a.heads = Divisor::of(a.group_size), a.q_tokens_bound = p.max_q_tokens;
  a.entries = l.entries, a.queries = l.queries, a.masks = l.masks, a.state_begin = l.state_begin;
  a.outputs[0]  = {a.heads, p.out, p.lse, p.lse_token, p.lse_head, p.lse_double, l.sinks};
  a.outputs[1]  = {a.heads,          l.state_out,           l.state_lse.data, l.state_lse.token,
                   l.state_lse.head, l.state_lse.is_double, nullptr};
  a.causal      = p.causal;
  a.min_queries = 1, a.max_queries = std::numeric_limits<int>::max();
}

/// Lets a kernel use as much shared memory as a block may have.
inline void allow_shared_memory(const void* kernel, int bytes) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "shared memory");
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared),
        "shared memory");
}

/// The blocks of a launch. `per_head` blocks that share the query rows of a kv head, a team, are neighbors. The blocks
/// of a cluster are of as many teams. Where passes run side by side (wgmma/passes.hpp), a team is a block for each of
/// them, and the y of the grid is the pass.
struct LaunchGrid {
  std::int64_t teams;
  int per_head = 1, cluster = 1;
  int side_by_side = 1;  ///< only if per_head and cluster are 1

  dim3 extents() const {
    if (per_head == 1) return {static_cast<unsigned>(teams), static_cast<unsigned>(side_by_side)};
    return {static_cast<unsigned>(cluster), static_cast<unsigned>(per_head), static_cast<unsigned>(teams / cluster)};
  }
};

/// Launches a kernel so that all of its blocks run at the same time. Returns false, with nothing launched, if they do
/// not fit the multiprocessors that the stream may use. programmatic: the kernel may start before the previous one has
/// ended.
inline bool launch(const void* kernel, void* args, const LaunchGrid& grid, int threads, int shared, bool programmatic,
                   CUstream_st* stream) {
  cudaLaunchAttribute attributes[3]{};
  attributes[0].id              = cudaLaunchAttributeCooperative;
  attributes[0].val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim          = grid.extents();
  config.blockDim         = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<std::size_t>(shared);
  config.stream           = stream;
  config.attrs = attributes, config.numAttrs = 1;
  if (programmatic) {
    cudaLaunchAttribute& a                       = attributes[config.numAttrs++];
    a.id                                         = cudaLaunchAttributeProgrammaticStreamSerialization;
    a.val.programmaticStreamSerializationAllowed = 1;
  }
  if (grid.cluster > 1) {
    cudaLaunchAttribute& a = attributes[config.numAttrs++];
    a.id                   = cudaLaunchAttributeClusterDimension;
    a.val.clusterDim.x     = static_cast<unsigned>(grid.cluster);
    a.val.clusterDim.y = a.val.clusterDim.z = 1;
  }
  void* arguments[]       = {args};
  const cudaError_t error = cudaLaunchKernelExC(&config, kernel, arguments);
  if (error == cudaErrorCooperativeLaunchTooLarge || (grid.cluster > 1 && error == cudaErrorInvalidClusterSize)) {
    cudaGetLastError();  // later calls must not find it
    return false;
  }
  check(error, "launch");
  return true;
}

}  // namespace pagoda::tuned
