// SPDX-License-Identifier: Apache-2.0
// Plans of batches by hand and of published trees; when a plan has to be made anew.
#include "src/plan/prefix/planner.hpp"

#include "tests/prefix/pat_trees.hpp"
#include "tests/prefix/prefix_batch.hpp"
#include "tests/prefix/right_list.hpp"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <numeric>
#include <set>
#include <utility>

namespace pagoda::test {
namespace {

using namespace detail;

constexpr DecodeHeads heads_32_8{32, 8, 128, 128, 512};

/// A machine on which lists and work items cost nothing, so that every batch that shares much has one.
DeviceRates eager() {
  DeviceRates d;
  d.list_us = 0, d.item_us = 0;
  return d;
}

std::vector<int> numbers(int from, int count) {
  std::vector<int> all(static_cast<std::size_t>(count));
  std::iota(all.begin(), all.end(), from);
  return all;
}
std::vector<int> operator+(std::vector<int> a, const std::vector<int>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// Entries as (first, last, queries), ascending.
using Ranges = std::multiset<std::array<int, 3>>;
Ranges ranges(const EntryList& list) {
  Ranges all;
  for (const Entry& e : list.entries) all.insert({e.first, e.last, e.num_queries});
  return all;
}

PrefixBatch two_branches() {
  PrefixBatch batch;
  for (int b = 0; b < 8; ++b)
    batch.rows.push_back(numbers(0, 64) + numbers(b < 4 ? 100 : 200, 32) + numbers(1000 + 10 * b, 2));
  batch.seq_lens.assign(8, 16 * 98 - 5);
  return batch;
}

TEST(PrefixPlanner, ATreeOfTwoLevels) {
  PrefixBatch batch  = two_branches();
  const BatchPages p = batch.pages();
  PrefixPlanner planner(heads_32_8, eager());
  ASSERT_TRUE(planner.plan(p));
  expect_right(p, planner.list());
  Ranges expected{{0, 1024, 8}, {1024, 1536, 4}, {1024, 1536, 4}};
  for (int b = 0; b < 8; ++b) expected.insert({1536, -1, 1});
  EXPECT_EQ(ranges(planner.list()), expected);
  EXPECT_EQ(planner.list().num_states(), 24);
  EXPECT_LT(planner.packed_us(), planner.plain_us());
}

TEST(PrefixPlanner, ShortNodesAreReadAgain) {
  // A page that four sequences share in front of what eight pairs share: two states less for each query token.
  PrefixBatch batch;
  for (int b = 0; b < 16; ++b)
    batch.rows.push_back(numbers(b / 4, 1) + numbers(100 + 200 * (b / 2), 100) + numbers(5000 + b, 1));
  batch.seq_lens.assign(16, 16 * 102);
  PrefixPlanner planner(heads_32_8, eager());
  ASSERT_TRUE(planner.plan(batch.pages()));
  expect_right(batch.pages(), planner.list());
  Ranges expected;
  for (int b = 0; b < 8; ++b) expected.insert({0, 16 * 101, 2});
  for (int b = 0; b < 16; ++b) expected.insert({16 * 101, -1, 1});
  EXPECT_EQ(ranges(planner.list()), expected);
}

TEST(PrefixPlanner, ManyQueriesAreSplitIntoTiles) {
  PrefixBatch batch;
  for (int b = 0; b < 100; ++b) batch.rows.push_back(numbers(0, 64) + numbers(1000 + b, 1));
  batch.seq_lens.assign(100, 16 * 64 + 1);
  PrefixPlanner planner(heads_32_8, eager());
  EXPECT_EQ(planner.cost().queries_per_entry(), 32);
  ASSERT_TRUE(planner.plan(batch.pages()));
  expect_right(batch.pages(), planner.list());
  Ranges shared;
  for (const auto& r : ranges(planner.list()))
    if (r[1] >= 0) shared.insert(r);
  EXPECT_EQ(shared, (Ranges{{0, 1024, 32}, {0, 1024, 32}, {0, 1024, 32}, {0, 1024, 4}}));
  EXPECT_EQ(planner.list().max_queries, 32);
}

TEST(PrefixPlanner, ALongSequenceBesideShortOnes) {
  // 131072 tokens, and 255 of 512 of which 400 are its own beginning.
  PrefixBatch batch;
  batch.rows.push_back(numbers(0, 8192));
  batch.seq_lens.push_back(131072);
  for (int b = 1; b < 256; ++b)
    batch.rows.push_back(numbers(0, 25) + numbers(10000 + 10 * b, 7)), batch.seq_lens.push_back(512);
  for (const auto table : {PrefixBatch::Table::dense, PrefixBatch::Table::strided, PrefixBatch::Table::csr}) {
    batch.table = table;
    PrefixPlanner planner(heads_32_8, DeviceRates{});
    const BatchPages p = batch.pages();
    ASSERT_TRUE(planner.plan(p));
    expect_right(p, planner.list());
    EXPECT_EQ(planner.list().num_states(), 2 * 256);
    // The long sequence stays whole: the kernel splits it.
    EXPECT_EQ(ranges(planner.list()).count({400, -1, 1}), 256u);
  }
}

/// Batches with little in them, which all end in a right list or in none.
TEST(PrefixPlanner, HardShapes) {
  const std::vector<int> a = numbers(0, 200), b = numbers(500, 200);
  const auto first = [](const std::vector<int>& row, int n) { return std::vector<int>(row.begin(), row.begin() + n); };
  struct Shape {
    const char* name;
    std::vector<std::vector<int>> rows;
    std::vector<int> seq_lens, sequence_ids, cu_seqlens_q;
    int query_len;
    bool packed;
  };
  const std::vector<Shape> shapes = {
      {"no sequences", {}, {}, {}, {}, 1, false},
      {"one sequence", {a}, {3200}, {}, {}, 1, false},
      {"one sequence twice in the batch", {a}, {3200}, {0, 0}, {}, 1, true},
      {"identical sequences", {a, a, a}, {3200, 3200, 3200}, {}, {}, 1, true},
      {"identical tables, other lengths", {a, a, a}, {3200, 1600, 17}, {}, {}, 1, true},
      {"a strict prefix of another, up to a page's end", {a, first(a, 100)}, {3200, 1600}, {}, {}, 1, true},
      {"a shared last page that is partly filled", {first(a, 100), first(a, 100)}, {1592, 1592}, {}, {}, 1, true},
      {"empty sequences", {a, {}, a, {}}, {3200, 0, 3200, 0}, {}, {}, 1, true},
      {"nothing but empty sequences", {{}, {}}, {0, 0}, {}, {}, 1, false},
      {"two roots", {a, b, a, b, numbers(900, 1)}, {3200, 3200, 3200, 3200, 16}, {}, {}, 1, true},
      {"ids in another order", {b, a, b, a}, {3200, 3200, 3200, 3200}, {3, 0, 1, 2}, {}, 1, true},
      {"ragged queries", {a, a, a, a}, {3200, 3200, 3200, 3200}, {}, {0, 1, 8, 8, 48}, 1, true},
      {"more queries than tokens", {a, a, first(a, 1)}, {3200, 3200, 2}, {}, {}, 4, true},
      {"no queries", {a, a}, {3200, 3200}, {}, {}, 0, false},
      {"queries of one sequence only", {a, a}, {3200, 3200}, {}, {0, 0, 5}, 1, false},
  };
  for (const Shape& shape : shapes)
    for (const auto table :
         {PrefixBatch::Table::dense, PrefixBatch::Table::strided, PrefixBatch::Table::csr, PrefixBatch::Table::none}) {
      SCOPED_TRACE(shape.name);
      PrefixBatch batch;
      batch.rows = shape.rows, batch.seq_lens = shape.seq_lens, batch.sequence_ids = shape.sequence_ids;
      batch.cu_seqlens_q = shape.cu_seqlens_q, batch.query_len = shape.query_len;
      batch.table = table;
      PrefixPlanner planner(heads_32_8, eager());
      const BatchPages p = batch.pages();
      ASSERT_EQ(planner.plan(p), shape.packed && table != PrefixBatch::Table::none);
      EXPECT_TRUE(planner.holds(p));
      if (planner.list().entries.empty()) continue;
      expect_right(p, planner.list());
      if (HasFatalFailure()) return;
    }
}

/// Pages behind a sequence's end lie in the table, are garbage, and change nothing.
TEST(PrefixPlanner, ReadsNoPageBehindASequence) {
  std::mt19937 random(4);
  for (int i = 0; i < 200; ++i) {
    PrefixBatch batch = random_batch(random, 20, 10);
    PrefixPlanner one(heads_32_8, eager()), other(heads_32_8, eager());
    const bool packed = one.plan(batch.pages(1));
    ASSERT_EQ(other.plan(batch.pages(2)), packed);
    ASSERT_EQ(ranges(one.list()), ranges(other.list()));
  }
}

// --- published trees ---

constexpr DecodeHeads pat_heads[] = {
    {32, 32, 128, 128, 512}, {16, 8, 128, 128, 512}, heads_32_8, {64, 8, 128, 128, 512}};

TEST(PrefixPlanner, PublishedTrees) {
  for (const PatTree& tree : pat_trees())
    for (int h = 0; h < 4; ++h) {
      SCOPED_TRACE(testing::Message() << "tree " << tree.number << ", heads " << pat_heads[h].num_q_heads << "/"
                                      << pat_heads[h].num_kv_heads);
      PrefixBatch batch  = tree_batch(tree.nodes, tree.tokens);
      const BatchPages p = batch.pages();
      PrefixPlanner planner(pat_heads[h], DeviceRates{});
      const bool packed = planner.plan(p);
      EXPECT_EQ(packed, tree.number < 19);
      if (!packed) continue;
      expect_right(p, planner.list());
      EXPECT_LT(planner.packed_us(), planner.plain_us());
      // The model knows what a plain decode takes (and the figures have a launch in them).
      if (tree.plain_us[h] > 0) {
        EXPECT_GT(planner.plain_us(), 0.75 * (tree.plain_us[h] - 15));
        EXPECT_LT(planner.plain_us(), 1.45 * tree.plain_us[h]);
      }
      // Shared tokens are read once for each tile of queries. But in deep trees short nodes are read again, which is
      // predicted to cost less than an entry for each node.
      const CostModel& cost = planner.cost();
      const int full        = cost.queries_per_entry();
      double read = 0, once = 0, every_node = cost.list();
      for (const Entry& e : planner.list().entries) read += (e.last < 0 ? p.seq_lens[e.sequence] : e.last) - e.first;
      for (std::size_t level = 0; level < tree.nodes.size(); ++level) {
        const int nodes = tree.nodes[level], tokens = tree.tokens[level], queries = p.batch / nodes;
        once += double(nodes) * tokens * ((queries + full - 1) / full);
        every_node +=
            nodes * (cost.entry(cost.weighted(tokens), queries) + cost.kept_in_cache(tokens) * cost.first_read());
      }
      EXPECT_LE(planner.packed_us(), every_node * (1 + 1e-9));
      EXPECT_LE(read, (tree.nodes.size() <= 3 ? 1.1 : 1.75) * once);
      if (tree.nodes.size() == 2) {
        EXPECT_EQ(read, once);
      }
    }
}

// --- when a plan holds ---

TEST(PrefixPlanner, HoldsWhileSequencesGrow) {
  PrefixBatch batch = two_branches();
  PrefixPlanner planner(heads_32_8, eager());
  EXPECT_FALSE(planner.holds(batch.pages()));  // of no plan
  ASSERT_TRUE(planner.plan(batch.pages()));
  EXPECT_TRUE(planner.holds(batch.pages(2)));
  for (int& length : batch.seq_lens) length += 5;  // in the last page
  EXPECT_TRUE(planner.holds(batch.pages()));
  for (std::size_t b = 0; b < 8; ++b) batch.rows[b].push_back(3000 + static_cast<int>(b)), batch.seq_lens[b] += 16;
  EXPECT_TRUE(planner.holds(batch.pages()));
  expect_right(batch.pages(), planner.list());
  for (auto& row : batch.rows)
    for (int& page : row) page += 7;  // all pages moved
  EXPECT_TRUE(planner.holds(batch.pages()));
  expect_right(batch.pages(), planner.list());
}

TEST(PrefixPlanner, DoesNotHoldWhereEntriesWouldBeWrong) {
  const std::vector<std::pair<const char*, std::function<void(PrefixBatch&)>>> changes = {
      {"a page of the root", [](PrefixBatch& b) { b.rows[5][63] = 9999; }},
      {"the first page of the first sequence", [](PrefixBatch& b) { b.rows[0][0] = 9999; }},
      {"a page of a branch", [](PrefixBatch& b) { b.rows[7][95] = 9999; }},
      {"a sequence that is cut back into shared pages", [](PrefixBatch& b) { b.seq_lens[3] = 1536; }},
      {"an empty sequence", [](PrefixBatch& b) { b.seq_lens[0] = 0; }},
      {"a sequence less", [](PrefixBatch& b) { b.rows.pop_back(), b.seq_lens.pop_back(); }},
      {"other sequences", [](PrefixBatch& b) { b.sequence_ids = {0, 1, 2, 4, 3, 5, 6, 7}; }},
      {"two query tokens", [](PrefixBatch& b) { b.query_len = 2; }},
      {"other query counts, as many in all", [](PrefixBatch& b) { b.cu_seqlens_q = {0, 2, 2, 3, 4, 5, 6, 7, 8}; }},
      {"smaller pages", [](PrefixBatch& b) { b.page_size = 8, b.seq_lens.assign(8, 700); }},
      {"a contiguous cache", [](PrefixBatch& b) { b.table = PrefixBatch::Table::none; }},
  };
  for (const auto& [name, change] : changes) {
    SCOPED_TRACE(name);
    PrefixBatch batch = two_branches();
    PrefixPlanner planner(heads_32_8, eager());
    ASSERT_TRUE(planner.plan(batch.pages()));
    change(batch);
    EXPECT_FALSE(planner.holds(batch.pages()));
  }
}

TEST(PrefixPlanner, RandomChangesOfPages) {
  // holds() agrees with the entries' own rule.
  std::mt19937 random(5);
  int held = 0, broken = 0;
  for (int i = 0; i < 4000; ++i) {
    PrefixBatch batch = random_batch(random, 12, 8);
    PrefixPlanner planner(heads_32_8, eager());
    if (!planner.plan(batch.pages())) continue;
    for (int n = 0; n < 2; ++n) {
      auto& row = batch.rows[random() % batch.rows.size()];
      if (!row.empty()) row[random() % row.size()] = static_cast<int>(random() % 100000);
    }
    const BatchPages p = batch.pages();
    bool right         = true;
    for (const Entry& e : planner.list().entries)
      for (int q = e.query_begin; q < e.query_begin + e.num_queries; ++q)
        for (int page = e.first / p.page_size; page < e.last / p.page_size; ++page)
          right = right && batch.rows[planner.list().queries[q].sequence][page] == batch.rows[e.sequence][page];
    EXPECT_EQ(planner.holds(p), right);
    ++(right ? held : broken);
  }
  EXPECT_GT(held, 100);
  EXPECT_GT(broken, 100);
}

}  // namespace
}  // namespace pagoda::test
