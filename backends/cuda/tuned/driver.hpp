// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/decode.hpp"

#include <cuda.h>
#include <cuda_runtime.h>

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

}  // namespace pagoda::tuned
