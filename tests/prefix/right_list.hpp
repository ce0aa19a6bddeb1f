// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/entry.hpp>

#include <pagoda/batch_pages.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace pagoda::test {

/// What every list must be, told from the tables alone.
inline void expect_right(const BatchPages& p, const EntryList& list) {
  const int tokens = p.query_tokens();
  ASSERT_EQ(static_cast<int>(list.queries.size()), tokens);
  ASSERT_EQ(static_cast<int>(list.state_begin.size()), tokens + 1);
  std::vector<int> owner(static_cast<std::size_t>(tokens));
  for (int b = 0; b < p.batch; ++b)
    for (int i = 0; i < p.num_queries(b); ++i) owner[p.query_begin(b) + i] = b;
  std::set<int> seen;
  std::vector<std::vector<const Entry*>> entries_of(static_cast<std::size_t>(tokens));
  for (const EntryQuery& q : list.queries) {
    ASSERT_TRUE(q.token >= 0 && q.token < tokens && seen.insert(q.token).second) << "query token " << q.token;
    const int b = owner[q.token];
    ASSERT_EQ(q.sequence, p.sequence(b));
    ASSERT_EQ(q.behind, p.num_queries(b) - (q.token - p.query_begin(b)));
  }
  int most = 0;
  for (const Entry& e : list.entries) {
    ASSERT_GE(e.query_begin, 0);
    ASSERT_GE(e.num_queries, 1);
    ASSERT_LE(e.query_begin + e.num_queries, tokens);
    ASSERT_TRUE(e.first >= 0 && e.first % p.page_size == 0 &&
                (e.last < 0 || (e.last > e.first && e.last % p.page_size == 0)))
        << e.first << " to " << e.last;
    ASSERT_EQ(e.sequence, list.queries[e.query_begin].sequence);
    most         = std::max(most, e.num_queries);
    const int b0 = owner[list.queries[e.query_begin].token];
    for (int i = e.query_begin; i < e.query_begin + e.num_queries; ++i) {
      const int b = owner[list.queries[i].token];
      entries_of[list.queries[i].token].push_back(&e);
      if (e.last < 0) {
        ASSERT_EQ(p.sequence(b), e.sequence);
        continue;
      }
      ASSERT_LE(e.last, p.seq_len(b) - p.num_queries(b)) << "newest tokens in a shared entry";
      for (int page = e.first / p.page_size; page < e.last / p.page_size; ++page)
        ASSERT_EQ(p.row(b)[page], p.row(b0)[page]) << "page " << page << " of batch entries " << b << " and " << b0;
    }
  }
  ASSERT_EQ(list.max_queries, most);
  for (int t = 0; t < tokens; ++t) {
    auto& entries = entries_of[t];
    std::sort(entries.begin(), entries.end(), [](const Entry* a, const Entry* b) { return a->first < b->first; });
    int covered = 0;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      ASSERT_EQ(entries[i]->first, covered) << "query token " << t;
      ASSERT_EQ(entries[i]->last < 0, i + 1 == entries.size()) << "query token " << t;
      ASSERT_EQ(entries[i]->state, entries.size() == 1 ? -1 : static_cast<int>(i)) << "query token " << t;
      covered = entries[i]->last;
    }
    ASSERT_LT(covered, 0) << "query token " << t << " lacks its own entry";
    ASSERT_EQ(list.state_begin[t + 1] - list.state_begin[t],
              entries.size() == 1 ? 0 : static_cast<int>(entries.size()));
  }
}

}  // namespace pagoda::test
