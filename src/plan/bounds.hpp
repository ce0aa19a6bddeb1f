// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/cache_ref.hpp>
#include <pagoda/detail/schedule.hpp>
#include <pagoda/error.hpp>
#include <pagoda/plan.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>

/// The bounds that a plan counts on. interface_bounds takes them from the options and the cache; all other bounds are
/// functions of these.
namespace pagoda::detail {

template <class MemorySpace>
Bounds interface_bounds(const DecodeOptions<MemorySpace>& o, const CacheRef& kv) {
  Bounds b;
  b.max_batch     = std::max({1, o.max_batch, o.max_batch == 0 ? kv.batch : 0});
  b.max_seq_len   = o.max_seq_len > 0 ? o.max_seq_len : kv.max_seq_len;
  b.max_query_len = o.max_query_len;
  require(o.max_query_tokens > 0 || std::int64_t(b.max_batch) * b.max_query_len < (std::int64_t(1) << 31),
          "pagoda::plan: max_batch is ", b.max_batch, " at max_query_len ", b.max_query_len,
          "; allowed: fewer than 2^31 query tokens (or say max_query_tokens)");
  b.max_query_tokens = o.max_query_tokens > 0 ? o.max_query_tokens : b.max_batch * b.max_query_len;
  if (o.entries.max_entries > 0) {
    b.max_entries       = o.entries.max_entries;
    b.max_entry_queries = o.entries.max_queries;
    b.chains            = o.entries.chains;
    require(o.entries.max_listed > 0 || std::int64_t(b.max_entries) * b.max_entry_queries < (std::int64_t(1) << 31),
            "pagoda::plan: entries.max_entries is ", b.max_entries, " at entries.max_queries ", b.max_entry_queries,
            "; allowed: fewer than 2^31 query tokens (or say entries.max_listed)");
    b.max_listed_queries = o.entries.max_listed > 0 ? o.entries.max_listed : b.max_entries * b.max_entry_queries;
    // Rows of q that no entry lists cost nothing.
    if (o.max_query_tokens == 0) b.max_query_tokens = std::numeric_limits<int>::max();
  } else if (o.cu_seqlens_q.data()) {
    const std::int64_t entries = static_cast<std::int64_t>(o.cu_seqlens_q.extent(0));
    const std::int64_t batch   = o.max_batch > 0 ? o.max_batch : kv.batch;
    require(entries >= batch + 1, "pagoda::plan: cu_seqlens_q has ", entries, " entries; allowed: at least ",
            o.max_batch > 0 ? "max_batch" : "the cache's batch", " + 1 = ", batch + 1);
    b.cu_seqlens_entries = static_cast<int>(std::min<std::int64_t>(entries, std::numeric_limits<int>::max()));
  }
  return b;
}

/// Whether decodes are of lists of entries. Otherwise they are of batches.
inline bool of_lists(const Bounds& bounds) { return bounds.max_entries > 0; }

/// Whether entries may have different numbers of query tokens.
inline bool ragged(const Bounds& bounds) { return bounds.cu_seqlens_entries > 0 || of_lists(bounds); }

/// Query rows that share a kv head in the entry with the most query tokens.
int query_rows_of_longest_entry(const Bounds& bounds, const ProblemShape& shape);

/// Query tokens of an average entry of a list.
int average_listed_queries(const Bounds& bounds);

/// Row tiles of a batch or a list. They are the rows that splits divide.
std::int64_t max_row_tiles(const Bounds& bounds, const ProblemShape& shape, const KernelChoice& kernel);

/// Throws InvalidArgument if a batch or a list may have 2^30 work items or more. max_split_tokens: the longest split.
void require_countable_items(const Bounds& bounds, const ProblemShape& shape, const KernelChoice& kernel,
                             int max_split_tokens);

}  // namespace pagoda::detail
