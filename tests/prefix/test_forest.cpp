// SPDX-License-Identifier: Apache-2.0
// The radix forest of random tables against sets of equal prefixes.
#include "src/plan/prefix/forest.hpp"

#include "tests/prefix/prefix_batch.hpp"

#include <gtest/gtest.h>

#include <array>
#include <climits>
#include <map>
#include <set>

namespace pagoda::test {
namespace {

using detail::PrefixForest;

std::vector<int> prefix(const BatchPages& p, int b, int pages) {
  std::vector<int> ids;
  for (int i = 0; i < pages; ++i) ids.push_back(p.row(b)[i]);
  return ids;
}

int shareable(const BatchPages& p, int b) { return p.num_queries(b) > 0 ? p.shareable_pages(b) : 0; }

/// Batch entries of a node, from the leaves below it.
std::vector<int> members(const PrefixForest& forest, int node) {
  std::vector<int> all;
  const auto& v = forest.nodes()[node];
  for (const auto& g : forest.groups().subspan(v.first_group, v.num_groups))
    for (const int b : forest.leaves().subspan(g.first_leaf, g.count)) all.push_back(b);
  for (int c = v.first_child; c < v.first_child + v.num_children; ++c)
    for (const int b : members(forest, c)) all.push_back(b);
  std::sort(all.begin(), all.end());
  return all;
}

/// Checks a forest against what equal prefixes say: for each prefix of two or more members, the node that has its last
/// page has these members.
void expect_forest(const BatchPages& p, PrefixForest& forest) {
  std::map<std::vector<int>, std::vector<int>> sharers;  // of each prefix
  for (int b = 0; b < p.batch; ++b)
    for (int n = 1; n <= shareable(p, b); ++n) sharers[prefix(p, b, n)].push_back(b);
  std::size_t shared_pages = 0;
  for (const auto& [ids, who] : sharers) shared_pages += who.size() > 1;

  ASSERT_EQ(forest.build(p), shared_pages > 0);
  std::size_t pages = 0;
  for (int v = 0; shared_pages > 0 && v < static_cast<int>(forest.nodes().size()); ++v) {
    const auto& node = forest.nodes()[v];
    ASSERT_LT(node.parent, v);
    ASSERT_EQ(node.parent < 0, v < forest.num_roots());
    ASSERT_EQ(node.first_page, node.parent < 0 ? 0 : forest.nodes()[node.parent].last_page);
    ASSERT_GT(node.pages(), 0);
    ASSERT_NE(node.num_children + node.num_groups, 0);
    const std::vector<int> who = members(forest, v);
    int queries                = 0;
    for (const int b : who) queries += p.num_queries(b);
    ASSERT_EQ(node.num_queries, queries);
    ASSERT_EQ(node.member, who.front());
    if (v > 0 && node.parent == forest.nodes()[v - 1].parent) {
      ASSERT_LT(forest.nodes()[v - 1].member, node.member);
    }
    for (int n = node.first_page + 1; n <= node.last_page; ++n, ++pages)
      ASSERT_EQ(sharers[prefix(p, node.member, n)], who);
    // Maximal: no page more is common to all members.
    ASSERT_TRUE(shareable(p, node.member) == node.last_page ||
                sharers[prefix(p, node.member, node.last_page + 1)] != who);
    for (const auto& g : forest.groups().subspan(node.first_group, node.num_groups)) {
      std::int64_t own = 0;
      ASSERT_EQ(g.node, v);
      for (const int b : forest.leaves().subspan(g.first_leaf, g.count)) {
        ASSERT_EQ(p.num_queries(b), g.num_queries);
        own += p.seq_len(b) - node.last_page * p.page_size;
      }
      ASSERT_EQ(own, g.own_tokens);
    }
  }
  ASSERT_EQ(pages, shared_pages);
  if (shared_pages == 0) return;
  std::set<int> leaves(forest.leaves().begin(), forest.leaves().end());
  ASSERT_EQ(leaves.size(), forest.leaves().size());
  for (int b = 0; b < p.batch; ++b) ASSERT_EQ(leaves.count(b), p.num_queries(b) > 0 ? 1u : 0u);
}

TEST(PrefixForest, RandomTables) {
  std::mt19937 random(1);
  PrefixForest forest;  // one for all: nothing of the last batch is left behind
  for (int i = 0; i < 1500; ++i) {
    SCOPED_TRACE(i);
    PrefixBatch batch = random_batch(random, i % 3 == 0 ? 60 : 12, i % 5 == 0 ? 40 : 6);
    expect_forest(batch.pages(), forest);
    if (HasFatalFailure()) return;
  }
}

TEST(PrefixForest, OddTables) {
  // Ids that stand at several places of a row and behind different prefixes, as no cache has them.
  std::mt19937 random(5);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const int odd[]  = {0, -1, INT_MAX, INT_MIN, 1 << 16, 1 << 30, -0x61c88647};
  PrefixForest forest;
  for (int i = 0; i < 800; ++i) {
    SCOPED_TRACE(i);
    PrefixBatch batch;
    batch.table = std::array{PrefixBatch::Table::dense, PrefixBatch::Table::strided, PrefixBatch::Table::csr}[i % 3];
    batch.page_size = 1 + below(3);
    const int ids = 1 + below(7), longest = i % 10 == 0 ? 80 : 25;
    for (int b = below(i % 10 == 1 ? 60 : 12); b >= 0; --b) {
      std::vector<int> row;
      if (!batch.rows.empty() && below(4) > 0) {
        row = batch.rows[static_cast<std::size_t>(below(static_cast<int>(batch.rows.size())))];
        if (below(3) > 0) row.resize(static_cast<std::size_t>(below(static_cast<int>(row.size()) + 1)));
        // One other page before what is shared again.
        if (!row.empty() && below(3) == 0) row[random() % row.size()] = odd[below(ids)];
      }
      for (int more = below(longest); more > 0; --more) row.push_back(odd[below(ids)]);
      batch.seq_lens.push_back(static_cast<int>(row.size()) * batch.page_size - (row.empty() ? 0 : below(2)));
      batch.rows.push_back(row);
    }
    if (i % 4 == 0) {
      batch.cu_seqlens_q = {0};
      for (std::size_t b = 0; b < batch.rows.size(); ++b)
        batch.cu_seqlens_q.push_back(batch.cu_seqlens_q.back() + below(4));
    }
    expect_forest(batch.pages(), forest);
    if (HasFatalFailure()) return;
  }
}

TEST(PrefixForest, EveryPlaceInLongRows) {
  // Pages are compared in blocks: rows that leave the first one, or end, before every page of several blocks. Two rows
  // leave at each place, and share one page more.
  PrefixForest forest;
  for (const int longest : {31, 32, 33, 34, 65, 90})
    for (const bool end : {false, true}) {
      SCOPED_TRACE(testing::Message() << longest << " pages, rows end: " << end);
      PrefixBatch batch;
      batch.page_size = 1;
      int next        = 0;
      for (int b = 0; b <= 2 * longest; ++b) {
        const int shared = b == 0 ? 0 : (b - 1) / 2;
        std::vector<int> row;
        if (b > 0) row.assign(batch.rows[0].begin(), batch.rows[0].begin() + shared);
        if (b % 2 == 0 && b > 0 && !end) row.push_back(batch.rows[b - 1][shared]);
        while (static_cast<int>(row.size()) < (end && b > 0 ? shared + b % 2 : longest)) row.push_back(next++);
        batch.seq_lens.push_back(static_cast<int>(row.size()) + 1);  // and the newest token
        row.push_back(next++);
        batch.rows.push_back(row);
      }
      expect_forest(batch.pages(), forest);
      if (HasFatalFailure()) return;
    }
}

TEST(PrefixForest, PagesWithoutAPlace) {
  // The same page id behind different prefixes, negative ids, and ids whose bits collide with those of nodes.
  PrefixBatch batch;
  batch.page_size = 1;
  batch.rows      = {
      {1, 7, 9, 0}, {2, 7, 9, 0}, {1, 7, 9, 0}, {-1, 7, 9, 0}, {INT_MIN, INT_MAX, 0, 0}, {INT_MIN, INT_MAX, 1, 0},
      {2, 7, 8, 0}};
  batch.seq_lens.assign(batch.rows.size(), 4);
  PrefixForest forest;
  expect_forest(batch.pages(), forest);
  EXPECT_EQ(forest.num_roots(), 3);
}

TEST(PrefixForest, NewestTokensAreNotShared) {
  PrefixBatch batch;
  batch.rows     = {{1, 2, 3}, {1, 2, 3}};
  batch.seq_lens = {48, 48};
  PrefixForest forest;
  ASSERT_TRUE(forest.build(batch.pages()));
  EXPECT_EQ(forest.nodes()[0].last_page, 2);  // the query token lies in the third page
  batch.seq_lens = {49, 49}, batch.rows = {{1, 2, 3, 4}, {1, 2, 3, 5}};
  ASSERT_TRUE(forest.build(batch.pages()));
  EXPECT_EQ(forest.nodes()[0].last_page, 3);
  batch.query_len = 18;
  ASSERT_TRUE(forest.build(batch.pages()));
  EXPECT_EQ(forest.nodes()[0].last_page, 1);
  batch.query_len = 40;
  EXPECT_FALSE(forest.build(batch.pages()));
}

TEST(PrefixForest, ContiguousCachesShareNothing) {
  PrefixBatch batch;
  batch.rows     = {{1, 2, 3}, {1, 2, 3}};
  batch.seq_lens = {48, 48};
  batch.table    = PrefixBatch::Table::none;
  PrefixForest forest;
  EXPECT_FALSE(forest.build(batch.pages()));
}

}  // namespace
}  // namespace pagoda::test
