// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/decode.hpp"
#include "src/kernel/divisor.hpp"

#include <cuda.h>
#include <vector_types.h>

#include <cstdint>

namespace pagoda::tuned {

using detail::Divisor;

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
  bool alone;    ///< one sequence: even
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
