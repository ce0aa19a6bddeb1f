// SPDX-License-Identifier: Apache-2.0
#include "src/plan/bounds.hpp"

namespace pagoda::detail {

namespace {

/// Entries of a batch or of a list, and their query tokens.
struct EntryCounts {
  int entries;           ///< batch entries that have query tokens, or entries of the list
  int longest;           ///< query tokens of one
  std::int64_t queries;  ///< query tokens of all
};

EntryCounts counts_of(const Bounds& b) {
  if (of_lists(b)) return {b.max_entries, b.max_entry_queries, b.max_listed_queries};
  return {std::min(b.max_batch, b.max_query_tokens), b.max_query_len, b.max_query_tokens};
}

}  // namespace

int query_rows_of_longest_entry(const Bounds& bounds, const ProblemShape& shape) {
  const std::int64_t rows = std::int64_t(counts_of(bounds).longest) * shape.group();
  require(rows < std::int64_t(1) << 31, "pagoda::plan: ", of_lists(bounds) ? "entries.max_queries" : "max_query_len",
          " is ", counts_of(bounds).longest, " with ", shape.group(),
          " query heads to a kv head; allowed: a product below 2^31");
  return static_cast<int>(rows);
}

int average_listed_queries(const Bounds& bounds) {
  return std::max(bounds.max_listed_queries / std::max(bounds.max_entries, 1), 1);
}

std::int64_t max_row_tiles(const Bounds& bounds, const ProblemShape& shape, const KernelChoice& kernel) {
  const std::int64_t group       = shape.group();
  const std::int64_t head_groups = shape.num_kv_heads / kernel.heads_per_item;
  const EntryCounts n            = counts_of(bounds);
  // Every entry fills its tiles except the last one.
  const std::int64_t of_ragged  = head_groups * (n.queries * group / kernel.row_tile + n.entries);
  const std::int64_t of_longest = (n.longest * group + kernel.row_tile - 1) / kernel.row_tile;
  return bounds.cu_seqlens_entries > 0 ? of_ragged : std::min(of_ragged, head_groups * n.entries * of_longest);
}

void require_countable_items(const Bounds& bounds, const ProblemShape& shape, const KernelChoice& kernel,
                             int max_split_tokens) {
  // In floating point, because very large bounds would overflow integers.
  const EntryCounts n = counts_of(bounds);
  const double row_tiles =
      shape.num_kv_heads * (double(n.queries) * double(shape.group()) / kernel.row_tile + n.entries);
  const double items = row_tiles * (1 + double(bounds.max_seq_len) / max_split_tokens);
  require(items < 0x1p30, "pagoda::plan: ", of_lists(bounds) ? "entries.max_listed" : "max_query_tokens", " is ",
          n.queries, " at max_seq_len ", bounds.max_seq_len,
          "; allowed: fewer than 2^30 work items, and these make about ", items);
}

}  // namespace pagoda::detail
