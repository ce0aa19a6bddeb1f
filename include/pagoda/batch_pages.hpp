// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

/// @file
/// Tables of a batch in host memory, for planners. This header needs neither Kokkos nor CUDA.
namespace pagoda {

/// Page ids of a sequence, in host memory.
struct PageRow {
  const int* ids      = nullptr;  ///< of the first page
  std::int64_t stride = 1;        ///< from one page to the next, in elements

  /// Id of page number `page` of the sequence.
  int operator[](int page) const { return ids[page * stride]; }
};

/// Page tables, lengths and query counts of a batch, in host memory: what the device's copies are when the decode runs.
/// The names are those of PagedKV and DecodeOptions. Page ids come in one of three forms: a dense table, CSR lists, or
/// a pointer for each sequence. Without any of them the cache is contiguous.
struct BatchPages {
  int batch               = 0;        ///< entries decoded by one call
  int num_sequences       = 0;        ///< entries of seq_lens
  int page_size           = 0;        ///< tokens in a page; 0 for a contiguous cache
  const int* seq_lens     = nullptr;  ///< [num_sequences] tokens held, this decode's query tokens included
  const int* sequence_ids = nullptr;  ///< [batch], or null: batch entry b is sequence b
  int query_len           = 1;        ///< query tokens of each batch entry, without cu_seqlens_q
  const int* cu_seqlens_q = nullptr;  ///< [batch + 1], or null

  const int* block_table      = nullptr;  ///< dense
  int max_pages               = 0;        ///< dense: entries of a row
  std::int64_t row_stride     = 0;        ///< dense: from one sequence's row to the next, in elements
  std::int64_t page_stride    = 1;        ///< dense: from one entry of a row to the next, in elements
  const int* page_indptr      = nullptr;  ///< CSR: [num_sequences + 1]
  const int* page_indices     = nullptr;  ///< CSR
  std::int64_t num_indices    = 0;        ///< CSR: entries of page_indices
  const int* const* page_rows = nullptr;  ///< pointers: [num_sequences] ids of the pages that seq_lens needs, or more

  /// Whether there are page ids.
  bool paged() const { return block_table || page_indptr || page_rows; }
  /// The sequence of batch entry b.
  int sequence(int b) const { return sequence_ids ? sequence_ids[b] : b; }
  /// Tokens of batch entry b.
  int seq_len(int b) const { return seq_lens[sequence(b)]; }
  /// First query token of batch entry b.
  int query_begin(int b) const { return cu_seqlens_q ? cu_seqlens_q[b] : b * query_len; }
  /// Query tokens of batch entry b.
  int num_queries(int b) const { return cu_seqlens_q ? cu_seqlens_q[b + 1] - cu_seqlens_q[b] : query_len; }
  /// Query tokens of all batch entries.
  int query_tokens() const { return query_begin(batch); }

  /// Pages of batch entry b.
  PageRow row(int b) const {
    const int s = sequence(b);
    if (page_rows) return {page_rows[s], 1};
    if (page_indptr) return {page_indices + page_indptr[s], 1};
    return {block_table + s * row_stride, page_stride};
  }
  /// Pages that other sequences may share. They are full and older than the sequence's newest tokens, which are this
  /// decode's query tokens. Every query token sees all of them.
  int shareable_pages(int b) const { return paged() ? std::max(seq_len(b) - num_queries(b), 0) / page_size : 0; }
};

}  // namespace pagoda
