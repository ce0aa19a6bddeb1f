// SPDX-License-Identifier: Apache-2.0
#include "src/plan/bounds.hpp"

namespace pagoda::detail {

namespace {

/// Batch entries that have query tokens.
int max_entries(const Bounds& bounds) { return std::min(bounds.max_batch, bounds.max_query_tokens); }

}  // namespace

int query_rows_of_longest_entry(const Bounds& bounds, const ProblemShape& shape) {
  const std::int64_t rows = std::int64_t(bounds.max_query_len) * shape.group();
  require(rows < std::int64_t(1) << 31, "pagoda::plan: max_query_len is ", bounds.max_query_len, " with ",
          shape.group(), " query heads to a kv head; allowed: a product below 2^31");
  return static_cast<int>(rows);
}

std::int64_t max_row_tiles(const Bounds& bounds, const ProblemShape& shape, const KernelChoice& kernel) {
  const std::int64_t group       = shape.group();
  const std::int64_t head_groups = shape.num_kv_heads / kernel.heads_per_item;
  // Every entry fills its tiles except the last one.
  const std::int64_t of_ragged =
      head_groups * (bounds.max_query_tokens * group / kernel.row_tile + max_entries(bounds));
  const std::int64_t of_longest = (bounds.max_query_len * group + kernel.row_tile - 1) / kernel.row_tile;
  return ragged(bounds) ? of_ragged : std::min(of_ragged, head_groups * bounds.max_batch * of_longest);
}

void require_countable_items(const Bounds& bounds, const ProblemShape& shape, const KernelChoice& kernel,
                             int max_split_tokens) {
  // In floating point, because very large bounds would overflow integers.
  const double row_tiles =
      shape.num_kv_heads *
      (double(bounds.max_query_tokens) * double(shape.group()) / kernel.row_tile + max_entries(bounds));
  const double items = row_tiles * (1 + double(bounds.max_seq_len) / max_split_tokens);
  require(items < 0x1p30, "pagoda::plan: max_query_tokens is ", bounds.max_query_tokens, " at max_seq_len ",
          bounds.max_seq_len, "; allowed: fewer than 2^30 work items, and these make about ", items);
}

}  // namespace pagoda::detail
