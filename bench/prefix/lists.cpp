// SPDX-License-Identifier: Apache-2.0
#include "bench/prefix/lists.hpp"

#include <algorithm>
#include <cstdint>
#include <random>

namespace pagoda::bench {

EntryList per_head_list(int sequences, int heads) {
  EntryList list;
  list.max_queries = 1;
  for (int s = 0; s < sequences; ++s) {
    list.entries.push_back({s, 0, -1, s, 1, -1, s % heads});
    list.queries.push_back({s / heads, s, 1});
  }
  return list;
}

EntryList draft_list(int sequences, int drafts, int most_queries) {
  EntryList list;
  list.max_queries = std::min(drafts, most_queries);
  std::mt19937 random(1);
  for (int s = 0; s < sequences; ++s) {
    for (int i = 0; i < drafts; i += list.max_queries)
      list.entries.push_back({s, 0, -1, s * drafts + i, std::min(drafts - i, list.max_queries), -1});
    const std::size_t first = list.masks.size();
    for (int i = 0; i < drafts; ++i) {
      // The parent is an earlier draft, or the context.
      const int parent       = static_cast<int>(random() % (static_cast<unsigned>(i) + 1)) - 1;
      std::uint64_t words[2] = {};
      for (int word = 0; word < 2 && parent >= 0; ++word)
        words[word] = list.masks[first + 2 * std::size_t(parent) + word];
      words[i / 64] |= std::uint64_t(1) << (i % 64);
      list.queries.push_back({s * drafts + i, s, drafts, static_cast<int>(list.masks.size())});
      list.masks.insert(list.masks.end(), words, words + 2);
    }
  }
  return list;
}

Sight sight_of_draft(const EntryList& list, int token, int length) {
  const EntryQuery& query = list.queries[static_cast<std::size_t>(token)];
  Sight sight{query.sequence, length - query.behind};
  for (int j = 0; j < query.behind; ++j)
    if (list.masks[static_cast<std::size_t>(query.mask) + j / 64] >> (j % 64) & 1)
      sight.others.push_back(sight.tokens + j);
  return sight;
}

}  // namespace pagoda::bench
