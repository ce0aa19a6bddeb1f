// SPDX-License-Identifier: Apache-2.0
#include "tests/support/cuts.hpp"

#include "src/kernel/visible_tokens.hpp"
#include "src/plan/split.hpp"

#include <algorithm>
#include <numeric>
#include <vector>

namespace pagoda::test {

Cuts cuts_of(const detail::Schedule& s, const Shape& shape) {
  const int batch = static_cast<int>(shape.lengths.size());
  std::vector<int> chunks, tiles;
  detail::RowTotals totals{};
  for (int b = 0; b < batch; ++b) {
    const int queries = shape.query_lens.empty() ? 1 : shape.query_lens[b], chunk = 1 << s.split.chunk_shift;
    chunks.push_back(
        detail::ceil_div(detail::VisibleTokens(s.options, {b, 0, shape.lengths[b], 0, queries}).count, chunk));
    tiles.push_back(s.shape.num_kv_heads / s.kernel.heads_per_item *
                    detail::ceil_div(queries * s.shape.group(), s.kernel.row_tile));
    if (chunks[b] == 0) continue;
    totals.chunks += std::int64_t(chunks[b]) * tiles[b];
    totals.rows += tiles[b];
    totals.longest = std::max(totals.longest, chunks[b]);
  }
  const std::int64_t rows          = std::accumulate(tiles.begin(), tiles.end(), std::int64_t(0));
  const detail::SplitBounds bounds = detail::fit_teams_to_rows(rows, s.split);
  int grid                         = 0;  // for even batches on machines that distribute tiles
  if (s.split.deals_tiles && !s.kernel.general && !detail::has_fixed_splits(bounds) && detail::even(totals))
    grid = detail::grid_for(rows, bounds.num_teams * bounds.even_waves);
  Cuts cuts;
  for (int b = 0; b < batch; ++b) {
    const int num_splits = grid > 0 ? detail::grid_splits_of(chunks[b], grid, bounds)
                                    : detail::num_splits_of(chunks[b], detail::limit_splits(totals, bounds), bounds);
    cuts.items += tiles[b] * num_splits * s.kernel.heads_per_item;
    cuts.merges += num_splits > 1 ? tiles[b] * s.kernel.heads_per_item : 0;
  }
  return cuts;
}

}  // namespace pagoda::test
