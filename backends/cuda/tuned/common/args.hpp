// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/decode.hpp"
#include "src/base/divisor.hpp"

#include <cuda.h>
#include <vector_types.h>

#include <cstdint>

namespace pagoda::tuned {

using detail::Divisor;

/// Four dims of the partial result of a query row: weighted values, then running maximum (base 2) and sum.
struct alignas(32) QuadPartial {
  float4 values;
  float2 state, unused;
};

/// Scales of single tokens. Strides are in bytes.
struct TokenScales {
  const float* data;  ///< null: tokens have none of their own
  std::uint32_t page, token, head;
};

/// The dims of tensor maps in which eight rows are one dimension and the runs of 128 bytes another, so that boxes of
/// several eights lie as boxes of one do. Two of the other dimensions are one; which, depends on how rows lie in
/// memory.
enum class EightsMap {
  none,         ///< rows do not lie so: boxes have eight rows
  runs_heads,   ///< a head's row follows that of the head before it (NHD): {8 rows, run of all heads, eights, page}
  heads_pages,  ///< a page follows the heads of the page before it (HND): {8 rows, run, eights, head of all pages}
};

/// Everything a kernel reads, by value. Fields are in the order in which kernels need them: arguments are loaded in
/// 64-byte lines, on first use, and each line delays the first copy by a tenth of a microsecond.
struct Args {
  const int *seq_lens, *block_table;
  Divisor num_splits;       ///< splits of each batch head of an even batch
  Divisor num_kv_heads;     ///< kv heads; half as many where a warp reads two at once
  Divisor copies_per_page;  ///< a copy loads up to 16 tokens (warp kernels) or 8 (wgmma kernels) of one page
  int batch;
  int table_row, table_page, last_page;  ///< last_page: last entry of a table row (with page_indptr: of the table)
  bool has_ids, has_indptr;
  bool stream_k;         ///< the batch is divided by stream-K, whether or not it is even
  bool single_sequence;  ///< batch is 1, which is always even: blocks start without looking at lengths
  bool programmatic;     ///< the previous kernel may still write queries and the newest tokens; never with stream_k
  /// Warp kernels: a tile has 2^log_copies copies, each of tokens of one page. More than one only where copies are by
  /// address.
  std::uint8_t log_copies;
  int group_size;  ///< query heads that share a kv head, or the kv heads that a warp reads at once

  const int *sequence_ids, *page_indptr;
  Heads q;
  float scale;         ///< softmax_scale * log2(e)
  int quads_per_join;  ///< warp kernels: output quads that each of `num_splits` blocks joins

  CUtensorMap k_map, v_map;  ///< unused where copies are by address
  Heads out;
  QuadPartial* partials;  ///< warp kernels: [block][2][output quad]
  void* lse;
  std::int64_t lse_token, lse_head;
  bool lse_double;
  int page_size;
  Cache k, v;                      ///< `scale` is null where tokens have scales of their own
  const int* cu_seqlens_q;         ///< [batch + 1]; only the instances for it read it
  TokenScales k_scales, v_scales;  ///< kernels of integers
  Divisor kv_group;                ///< query heads to a kv head
};

}  // namespace pagoda::tuned
