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

/// Everything a kernel reads, by value. What is needed first stands first: arguments come in lines of 64 bytes, one
/// after another as they are asked for, each a tenth of a microsecond before the first copy.
struct Args {
  const int *seq_lens, *block_table;
  Divisor pieces;  ///< into which each row of an even batch is dealt
  Divisor num_kv_heads;
  Divisor tiles_per_page;
  int batch;
  int table_row, table_page, last_page;  ///< last entry of a row of the table (page_indptr: of the table)
  bool has_ids, has_indptr;
  bool streams;  ///< the batch is cut as one stream of tiles, even or not
  bool alone;    ///< one sequence, which is even: nobody needs to look at lengths before they start
  bool early;    ///< the kernel before may still run, and write queries and newest tokens; never of a stream
  int group;

  const int *sequence_ids, *page_indptr;
  Heads q;
  float scale;  ///< softmax_scale * log2(e)
  int slice;    ///< items of a row that each of `pieces` blocks joins

  CUtensorMap k_map, v_map;  ///< unused where copies are by address
  Heads out;
  Record* records;  ///< [block][2][item]
  void* lse;
  std::int64_t lse_batch, lse_head;
  bool lse_double;
  int page_size;
  Cache k, v;
};

}  // namespace pagoda::tuned
