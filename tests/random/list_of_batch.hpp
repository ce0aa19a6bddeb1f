// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/entries/list_scene.hpp"

#include <algorithm>
#include <random>
#include <vector>

namespace pagoda::test::random {

/// A list that decodes a batch: each sequence in one to four ranges, which begin at multiples of `unit` tokens, for all
/// heads or with an entry for each kv head. Some entries between them are skipped. The choice follows from shape.seed.
/// sequences: of each batch entry.
inline EntryList list_of_batch(const Shape& shape, const std::vector<int>& sequences, int unit) {
  std::mt19937 random(shape.seed);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const int batch  = static_cast<int>(sequences.size());
  EntryList list;
  list.state_begin = {0};
  for (int b = 0; b < batch; ++b) {
    const int n = shape.query_lens.empty() ? 1 : shape.query_lens[b], begin = static_cast<int>(list.queries.size());
    list.max_queries = std::max(list.max_queries, n);
    // The newest n tokens may be hidden from query tokens, which only the last range does.
    std::vector<int> firsts{0};
    if (const int units = (shape.lengths[b] - n) / unit; units > 0)
      for (int cuts = below(4); cuts > 0; --cuts) firsts.push_back(unit * (1 + below(units)));
    std::sort(firsts.begin(), firsts.end());
    firsts.erase(std::unique(firsts.begin(), firsts.end()), firsts.end());
    const int ranges    = static_cast<int>(firsts.size());
    const bool per_head = below(3) == 0;
    for (int r = 0; r < ranges; ++r) {
      const int last = r + 1 < ranges ? firsts[r + 1] : -1, state = ranges == 1 ? -1 : r;
      for (int h = 0; h < (per_head ? shape.num_kv_heads : 1); ++h)
        list.entries.push_back({sequences[b], firsts[r], last, begin, n, state, per_head ? h : -1});
      if (below(8) == 0) list.entries.push_back({1 << 30, unit, -1, 1 << 30, 0, 9});
    }
    for (int i = 0; i < n; ++i) {
      list.queries.push_back({static_cast<int>(list.queries.size()), sequences[b], n - i});
      list.state_begin.push_back(list.state_begin.back() + (ranges == 1 ? 0 : ranges));
    }
  }
  return list;
}

}  // namespace pagoda::test::random
