// SPDX-License-Identifier: Apache-2.0
#include "src/plan/prefix/batch_pages.hpp"

#include <pagoda/error.hpp>

namespace pagoda::detail {

namespace {

[[noreturn]] void refuse_entry(const char* who, const char* array, int index, std::int64_t value, const char* allowed,
                               std::int64_t limit) {
  throw InvalidArgument(concat(who, ": ", array, "[", index, "] is ", value, "; allowed: ", allowed, limit));
}

void require_table(const char* who, const BatchPages& p) {
  require((p.block_table != nullptr) + (p.page_indptr != nullptr) + (p.page_rows != nullptr) <= 1, who, ": ",
          !p.page_rows     ? "block_table and page_indptr"
          : !p.block_table ? "page_indptr and page_rows"
                           : "block_table and page_rows",
          " are both given; allowed: one of block_table, page_indptr and page_rows, or none for a contiguous cache");
  if (!p.paged()) return;
  require(p.page_size >= 1, who, ": page_size is ", p.page_size, "; allowed: 1 or more");
  if (p.page_rows) return;
  require(p.block_table ? p.max_pages >= 0 : p.num_indices >= 0, who, ": ",
          p.block_table ? "max_pages is " : "num_indices is ", p.block_table ? p.max_pages : p.num_indices,
          "; allowed: 0 or more");
  require(!p.page_indptr || p.page_indices || p.num_indices == 0, who,
          ": page_indices is null; allowed: memory for its ", p.num_indices, " entries");
}

/// The pages that sequence s needs lie in the table.
void require_pages(const char* who, const BatchPages& p, int s) {
  if (p.page_rows) {
    require(p.page_rows[s] || p.seq_lens[s] == 0, who, ": page_rows[", s,
            "] is null; allowed: the ids of the pages of ", p.seq_lens[s], " tokens");
    return;
  }
  const auto fit = [&](std::int64_t pages) { return p.seq_lens[s] <= pages * p.page_size; };
  if (p.block_table) {
    if (!fit(p.max_pages))
      refuse_entry(who, "seq_lens", s, p.seq_lens[s],
                   "up to max_pages * page_size = ", std::int64_t(p.max_pages) * p.page_size);
    return;
  }
  if (p.page_indptr[s] < 0) refuse_entry(who, "page_indptr", s, p.page_indptr[s], "at least ", 0);
  if (p.page_indptr[s + 1] > p.num_indices)
    refuse_entry(who, "page_indptr", s + 1, p.page_indptr[s + 1], "up to num_indices = ", p.num_indices);
  if (!fit(std::int64_t(p.page_indptr[s + 1]) - p.page_indptr[s]))
    refuse_entry(who, "seq_lens", s, p.seq_lens[s], "up to the tokens of the sequence's pages in page_indptr, ",
                 (std::int64_t(p.page_indptr[s + 1]) - p.page_indptr[s]) * p.page_size);
}

}  // namespace

void require_batch_pages(const char* who, const BatchPages& p) {
  require(p.batch >= 0, who, ": batch is ", p.batch, "; allowed: 0 or more");
  require_table(who, p);
  require(p.sequence_ids || p.batch <= p.num_sequences, who, ": batch is ", p.batch,
          "; allowed without sequence_ids: up to num_sequences = ", p.num_sequences);
  require(p.cu_seqlens_q || p.query_len >= 0, who, ": query_len is ", p.query_len, "; allowed: 0 or more");
  require(p.cu_seqlens_q || std::int64_t(p.batch) * p.query_len <= INT32_MAX, who, ": batch * query_len is ",
          std::int64_t(p.batch) * p.query_len, "; allowed: fewer than 2^31");
  require(p.seq_lens || p.batch == 0, who, ": seq_lens is null; allowed: memory for its ", p.num_sequences, " entries");
  if (p.cu_seqlens_q && p.cu_seqlens_q[0] != 0) refuse_entry(who, "cu_seqlens_q", 0, p.cu_seqlens_q[0], "", 0);
  for (int b = 0; b < p.batch; ++b) {
    const int s = p.sequence(b);
    if (s < 0 || s >= p.num_sequences)
      refuse_entry(who, "sequence_ids", b, s, "0 or more, and less than num_sequences = ", p.num_sequences);
    if (p.seq_lens[s] < 0) refuse_entry(who, "seq_lens", s, p.seq_lens[s], "at least ", 0);
    if (p.num_queries(b) < 0)
      refuse_entry(who, "cu_seqlens_q", b + 1, p.cu_seqlens_q[b + 1], "at least the entry before it, ",
                   p.cu_seqlens_q[b]);
    if (p.paged()) require_pages(who, p, s);
  }
}

}  // namespace pagoda::detail
