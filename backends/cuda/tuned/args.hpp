// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/decode.hpp"

#include <cuda.h>
#include <vector_types.h>

#include <cstdint>

namespace pagoda::tuned {

/// n / value for n < 2^31, without a division (Granlund and Montgomery, "Division by invariant integers using
/// multiplication", 1994).
struct Divisor {
  int value;
  std::uint32_t multiplier, shift;

  static Divisor of(int value) {
    std::uint32_t shift = 0;
    while ((std::int64_t(1) << shift) < value) ++shift;
    const std::uint64_t m = ((std::uint64_t(1) << (31 + shift)) + value - 1) / value;
    return {value, static_cast<std::uint32_t>(m), shift};
  }
#if defined(__CUDACC__)
  __device__ __forceinline__ int divide(int n) const {
    return static_cast<int>(__umulhi(static_cast<std::uint32_t>(n) << 1, multiplier) >> shift);
  }
#endif
};

/// One record of a part of a row: four dims of a head's weighted values, then maximum (base 2) and sum.
struct alignas(32) Record {
  float4 values;
  float2 state, unused;
};

/// Everything a kernel reads, by value. What is needed first stands together: it comes in few lines of the constant
/// cache, and every miss there delays the first copy.
struct Args {
  CUtensorMap k_map, v_map;  ///< unused where copies are by address
  const int *seq_lens, *sequence_ids, *block_table, *page_indptr;
  int table_row, table_page, last_page;  ///< last entry of a row of the table (page_indptr: of the table)
  Divisor pieces;                        ///< into which each row of an even batch is dealt
  Divisor num_kv_heads;
  Divisor tiles_per_page;
  int batch, group;
  bool streams;  ///< the batch is cut as one stream of tiles, even or not
  bool alone;    ///< one sequence, which is even: nobody needs to look at lengths before they start
  bool lse_double;
  int slice;    ///< items of a row that each of `pieces` blocks joins
  float scale;  ///< softmax_scale * log2(e)
  Heads q, out;
  Record* records;  ///< [block][2][item]
  void* lse;
  std::int64_t lse_batch, lse_head;
  int page_size;
  Cache k, v;
};

}  // namespace pagoda::tuned
