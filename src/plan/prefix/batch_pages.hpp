// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

namespace pagoda::detail {

/// Page ids of a sequence, in host memory.
struct PageRow {
  const int* ids      = nullptr;
  std::int64_t stride = 1;

  int operator[](int page) const { return ids[page * stride]; }
};

/// Returns the first page from `from` on in which two rows differ, or `to`.
inline int common_end(const PageRow& a, const PageRow& b, int from, int to) {
  if (a.stride == 1 && b.stride == 1) {
    constexpr int block = 16;
    for (; from + block <= to; from += block) {
      int differ = 0;  // no exit inside the block, so that the compiler vectorizes it
      for (int i = 0; i < block; ++i) differ |= a.ids[from + i] ^ b.ids[from + i];
      if (differ != 0) break;
    }
    while (from < to && a.ids[from] == b.ids[from]) ++from;
    return from;
  }
  while (from < to && a[from] == b[from]) ++from;
  return from;
}

/// Block tables, lengths and query counts of a batch, in host memory. The names are those of PagedKV and DecodeOptions.
/// Without block_table and page_indptr the cache is contiguous.
struct BatchPages {
  int batch               = 0;
  int num_sequences       = 0;
  int page_size           = 0;        ///< 0 for a contiguous cache
  const int* seq_lens     = nullptr;  ///< [num_sequences]
  const int* sequence_ids = nullptr;  ///< [batch], or null: batch entry b is sequence b
  int query_len           = 1;        ///< query tokens of each batch entry, without cu_seqlens_q
  const int* cu_seqlens_q = nullptr;  ///< [batch + 1], or null

  const int* block_table   = nullptr;  ///< dense
  int max_pages            = 0;        ///< dense: entries of a row
  std::int64_t row_stride  = 0;        ///< dense
  std::int64_t page_stride = 1;        ///< dense
  const int* page_indptr   = nullptr;  ///< CSR: [num_sequences + 1]
  const int* page_indices  = nullptr;  ///< CSR
  std::int64_t num_indices = 0;        ///< CSR: entries of page_indices

  bool paged() const { return block_table || page_indptr; }
  int sequence(int b) const { return sequence_ids ? sequence_ids[b] : b; }
  int seq_len(int b) const { return seq_lens[sequence(b)]; }
  int query_begin(int b) const { return cu_seqlens_q ? cu_seqlens_q[b] : b * query_len; }
  int num_queries(int b) const { return cu_seqlens_q ? cu_seqlens_q[b + 1] - cu_seqlens_q[b] : query_len; }
  int query_tokens() const { return query_begin(batch); }

  PageRow row(int b) const {
    const int s = sequence(b);
    if (page_indptr) return {page_indices + page_indptr[s], 1};
    return {block_table + s * row_stride, page_stride};
  }
  /// Pages that other sequences may share. They are full and older than the sequence's newest tokens, which are this
  /// decode's query tokens. Every query token sees all of them.
  int shareable_pages(int b) const { return paged() ? std::max(seq_len(b) - num_queries(b), 0) / page_size : 0; }
};

/// Throws InvalidArgument if a count, a length, a sequence id or an offset is outside of the arrays. Reads no page id.
void require_batch_pages(const char* who, const BatchPages& pages);

}  // namespace pagoda::detail
