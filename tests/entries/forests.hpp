// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/plan/prefix/planner.hpp"

#include "tests/entries/list_scene.hpp"
#include "tests/prefix/prefix_batch.hpp"

#include <algorithm>
#include <map>
#include <vector>

namespace pagoda::test {

/// A batch whose sequences share pages, as a problem of a list.
struct Forest {
  Sequences sequences;
  std::vector<int> sequence_of, behind;  ///< of each query token
  EntryList list;

  int query_tokens() const { return static_cast<int>(behind.size()); }
  /// What the batch's query tokens see, with these lengths.
  auto sight(bool causal, const std::vector<int>& lengths) const {
    return [this, causal, lengths](int token, int) -> std::optional<Sight> {
      const int s = sequence_of[token], position = lengths[s] - behind[token];
      return sequences.sight(s, causal ? std::max(position + 1, 0) : lengths[s], position);
    };
  }
};

/// The list of PrefixPlanner on a machine where everything but reading is free, so that whatever can be shared is.
/// Where nothing is shared, an entry for each sequence.
inline Forest forest_of(PrefixBatch& batch) {
  Forest f;
  const BatchPages pages = batch.pages();
  DeviceRates rates;
  rates.list_us = rates.item_us = 0, rates.state_bytes_per_us = 1e15,
  rates.cache_bytes_per_us = rates.memory_bytes_per_us;
  detail::PrefixPlanner planner({4, 2, 64, 64, 256}, rates);
  if (planner.plan(pages)) {
    f.list = planner.list();
  } else {
    for (int b = 0; b < pages.batch; ++b) {
      const int n = pages.num_queries(b), begin = static_cast<int>(f.list.queries.size());
      f.list.entries.push_back({pages.sequence(b), 0, -1, begin, n, -1});
      for (int i = 0; i < n; ++i) f.list.queries.push_back({pages.query_begin(b) + i, pages.sequence(b), n - i});
      f.list.max_queries = std::max(f.list.max_queries, n);
    }
  }
  for (int b = 0; b < pages.batch; ++b)
    for (int i = 0; i < pages.num_queries(b); ++i)
      f.sequence_of.push_back(pages.sequence(b)), f.behind.push_back(pages.num_queries(b) - i);
  std::map<int, int> numbers;  // page ids become 0, 1 ...
  for (auto& row : batch.rows)
    for (const int page : row) numbers.emplace(page, static_cast<int>(numbers.size()));
  f.sequences = {batch.page_size, batch.rows, batch.seq_lens};
  for (auto& row : f.sequences.rows)
    for (int& page : row) page = numbers[page];
  return f;
}

}  // namespace pagoda::test
