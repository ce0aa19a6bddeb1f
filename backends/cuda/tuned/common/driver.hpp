// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/common/args.hpp"
#include "backends/cuda/tuned/decode.hpp"

#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>

/// What both kernels' launchers ask of CUDA.
namespace pagoda::tuned {

inline void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess)
    throw std::runtime_error(std::string("pagoda::tuned: ") + what + ": " + cudaGetErrorString(error));
}

/// Tensor maps come from the driver, which the library is not linked to.
using EncodeMap = decltype(&cuTensorMapEncodeTiled);
inline EncodeMap encode_map() {
  static const EncodeMap encode = [] {
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
    return reinterpret_cast<EncodeMap>(entry);
  }();
  return encode;
}

/// Rows of `dims` dense elements of so many bytes, as runs of 128 bytes: [outer][head][row], distances in bytes. A box
/// is box_rows rows of one head: in shared memory run after run, of 128 bytes of each row, swizzled. Rows beyond the
/// last are zeros.
struct Rows5 {
  const void* data;
  int element_bytes, dims;
  std::int64_t rows, heads, outer;
  std::int64_t row, head, next_outer;  ///< from one to the next; of no matter where there is one
};
inline CUtensorMap map_of(const Rows5& r, int box_rows) {
  const cuuint64_t run = 128 / r.element_bytes, runs = r.dims / run;
  const auto distance = [](std::int64_t bytes, std::int64_t extent) { return cuuint64_t(extent > 1 ? bytes : 128); };
  const cuuint64_t dims[5]    = {run, cuuint64_t(r.rows), runs, cuuint64_t(r.heads), cuuint64_t(r.outer)};
  const cuuint64_t strides[4] = {distance(r.row, r.rows), 128, distance(r.head, r.heads),
                                 distance(r.next_outer, r.outer)};
  const cuuint32_t box[5] = {cuuint32_t(run), cuuint32_t(box_rows), cuuint32_t(runs), 1, 1}, steps[5] = {1, 1, 1, 1, 1};
  const CUtensorMapDataType bits = r.element_bytes == 4   ? CU_TENSOR_MAP_DATA_TYPE_UINT32
                                   : r.element_bytes == 2 ? CU_TENSOR_MAP_DATA_TYPE_UINT16
                                                          : CU_TENSOR_MAP_DATA_TYPE_UINT8;
  CUtensorMap map;
  const CUresult result =
      encode_map()(&map, bits, 5, const_cast<void*>(r.data), dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                   CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    throw std::runtime_error("pagoda::tuned: the driver refuses a tensor map (CUresult " + std::to_string(result) +
                             ")");
  return map;
}
inline CUtensorMap map_of(const Problem& p, const Cache& c, int element_bytes, int box_tokens) {
  return map_of({c.data, element_bytes, p.head_dim, p.page_size, p.num_kv_heads, p.num_pages, c.token, c.head, c.page},
                box_tokens);
}

/// Tiles of so many tokens in the longest row that there may be.
inline std::int64_t most_tiles(const Problem& p, int tokens) {
  const auto room = p.block_table ? std::int64_t(p.page_size) * p.table_pages : p.page_size;
  return (std::min<std::int64_t>(room, p.max_seq_len) + tokens - 1) / tokens;
}

/// What a kernel is told of the problem, whichever it is. copied_tokens: by one copy, all of one page; pieces, streams:
/// how rows are spread.
inline void describe(const Problem& p, int copied_tokens, int pieces, bool streams, Args& a) {
  a.k = p.k, a.v = p.v;
  a.seq_lens = p.seq_lens, a.sequence_ids = p.sequence_ids, a.block_table = p.block_table;
  a.page_indptr = p.page_indptr, a.table_row = static_cast<int>(p.table_row),
  a.table_page = static_cast<int>(p.table_page);
  a.last_page  = static_cast<int>(std::clamp<std::int64_t>(p.table_pages - 1, 0, (std::int64_t(1) << 31) - 1));
  a.has_ids = p.sequence_ids != nullptr, a.has_indptr = p.page_indptr != nullptr;
  a.page_size = p.page_size, a.batch = p.batch, a.group = p.num_q_heads / p.num_kv_heads;
  a.tiles_per_page = Divisor::of(std::max(p.page_size / copied_tokens, 1));
  a.num_kv_heads   = Divisor::of(p.num_kv_heads);
  a.pieces         = Divisor::of(pieces);
  a.streams = streams, a.alone = p.batch == 1 && !streams;
  a.q = p.q, a.out = p.out, a.lse = p.lse, a.lse_double = p.lse_double;
  a.lse_batch = p.lse_batch, a.lse_head = p.lse_head;
  a.scale = static_cast<float>(p.softmax_scale * 1.4426950408889634);
}

/// Launches a kernel so that all of its blocks run at the same time. False, with nothing launched: they do not fit the
/// multiprocessors that the stream may use. early: before the kernel before it has ended.
inline bool launch(const void* kernel, void* args, std::int64_t blocks, int threads, int shared, bool early,
                   CUstream_st* stream) {
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id                                         = cudaLaunchAttributeCooperative;
  attributes[0].val.cooperative                            = 1;
  attributes[1].id                                         = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim          = dim3(static_cast<unsigned>(blocks));
  config.blockDim         = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<std::size_t>(shared);
  config.stream           = stream;
  config.attrs = attributes, config.numAttrs = early ? 2 : 1;
  void* arguments[]       = {args};
  const cudaError_t error = cudaLaunchKernelExC(&config, kernel, arguments);
  if (error == cudaErrorCooperativeLaunchTooLarge) {
    cudaGetLastError();  // later calls must not find it
    return false;
  }
  check(error, "launch");
  return true;
}

}  // namespace pagoda::tuned
