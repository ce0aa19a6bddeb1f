// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/cache_ref.hpp>
#include <pagoda/check.hpp>
#include <pagoda/error.hpp>

#include <Kokkos_Core.hpp>

#include <cstdint>
#include <string>

/// What the lengths, ids, page tables and query counts of a batch may hold. pagoda::check and checked plans share it.
namespace pagoda::detail {

enum class Fault { none, sequence_id, seq_len, page_list, page, query_counts };

/// The first fault of one batch entry, and the numbers for its error text.
struct Finding {
  Fault fault  = Fault::none;
  int sequence = 0, index = 0;
  std::int64_t value = 0, limit = 0;
  std::int64_t bound = 0;  ///< entries of page_indices, or query tokens
  int max_query_len  = 0;
};

/// Whether the query tokens of entry b are a range of the queries.
KOKKOS_INLINE_FUNCTION bool counts_fit(const QueryCounts& queries, int b) {
  if (!queries.cu_seqlens_q) return true;
  const std::int64_t begin = queries.cu_seqlens_q[b], end = queries.cu_seqlens_q[b + 1];
  return begin >= 0 && end >= begin && end <= queries.num_tokens && end - begin <= queries.max_query_len;
}

/// The pages of an entry in the table.
struct PageRange {
  std::int64_t row = 0, pages = 0;
};

/// Everything but page ids. Without a fault, `range` is where the page ids are, and Finding::value is the length.
KOKKOS_INLINE_FUNCTION Finding examine_entry(const CacheRef& kv, const QueryCounts& queries, int b, PageRange& range) {
  Finding f;
  range = {};
  if (!counts_fit(queries, b)) {
    f.fault = Fault::query_counts, f.value = queries.cu_seqlens_q[b], f.limit = queries.cu_seqlens_q[b + 1];
    f.bound = queries.num_tokens, f.max_query_len = queries.max_query_len;
    return f;
  }
  f.sequence = kv.sequence_ids ? kv.sequence_ids[b] : b;
  if (f.sequence < 0 || f.sequence >= kv.num_sequences) {
    f.fault = Fault::sequence_id, f.value = f.sequence, f.limit = kv.num_sequences;
    return f;
  }
  f.value = kv.seq_lens[f.sequence];
  f.limit = kv.max_seq_len;
  if (f.value < 0 || f.value > f.limit) {
    f.fault = Fault::seq_len;
    return f;
  }
  if (!kv.paged) return f;
  const std::int64_t page_size = kv.k.extent[1], pages = (f.value + page_size - 1) / page_size;
  std::int64_t row = f.sequence * kv.table_row_stride;
  if (kv.page_indptr) {
    row             = kv.page_indptr[f.sequence];
    const auto held = kv.page_indptr[f.sequence + 1] - row;
    if (row < 0 || held < pages || row + pages > kv.table_pages) {
      f.fault = Fault::page_list, f.value = held, f.limit = pages, f.bound = kv.table_pages;
      return f;
    }
  }
  range = {row, pages};
  return f;
}

/// Page i of the range: its id, and whether the cache has such a page.
KOKKOS_INLINE_FUNCTION int page_id(const CacheRef& kv, const PageRange& range, std::int64_t i) {
  return kv.block_table[range.row + i * kv.table_page_stride];
}
KOKKOS_INLINE_FUNCTION bool page_fits(const CacheRef& kv, const PageRange& range, std::int64_t i) {
  const int id = page_id(kv, range, i);
  return id >= 0 && id < kv.k.extent[0];
}
KOKKOS_INLINE_FUNCTION void set_page_fault(Finding& f, const CacheRef& kv, const PageRange& range, std::int64_t i) {
  f.fault = Fault::page, f.index = static_cast<int>(i), f.value = page_id(kv, range, i), f.limit = kv.k.extent[0];
}

/// All of an entry, in one thread.
KOKKOS_INLINE_FUNCTION Finding examine(const CacheRef& kv, const QueryCounts& queries, int b) {
  PageRange range;
  Finding f = examine_entry(kv, queries, b, range);
  for (std::int64_t i = 0; i < range.pages; ++i)
    if (!page_fits(kv, range, i)) {
      set_page_fault(f, kv, range, i);
      break;
    }
  return f;
}

/// The error text for a fault of batch entry b.
inline std::string text_of(const char* who, const Finding& f, int b) {
  const auto in_sequence = concat(" of sequence ", f.sequence, " (batch entry ", b, ")");
  switch (f.fault) {
    case Fault::sequence_id:
      return concat(who, ": sequence_ids(", b, ") is ", f.value, "; allowed: 0 to ", f.limit - 1);
    case Fault::seq_len:
      return concat(who, ": seq_lens(", f.sequence, ") is ", f.value, "; allowed: 0 to ", f.limit);
    case Fault::page_list:
      return concat(who, ": page_indptr gives ", f.value, " pages", in_sequence, "; allowed: at least ", f.limit,
                    ", all within the ", f.bound, " entries of page_indices");
    case Fault::page:
      return concat(who, ": page ", f.index, in_sequence, " is ", f.value, "; allowed: 0 to ", f.limit - 1);
    case Fault::query_counts:
      return concat(who, ": cu_seqlens_q(", b, ") is ", f.value, " and cu_seqlens_q(", b + 1, ") is ", f.limit,
                    "; allowed: values from 0 to q.extent(0) = ", f.bound,
                    " that rise by 0 to max_query_len = ", f.max_query_len);
    case Fault::none:
      break;
  }
  return {};
}

}  // namespace pagoda::detail
