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

/// The same with kernels that carry out chains.
DeviceRates eager_chains() {
  DeviceRates d = eager();
  d.chain_rows = 64, d.chain_entry_us = 0;
  return d;
}

/// The same where chains begin behind their node: states cost nothing, and a full tile no more than a chain.
DeviceRates eager_chains_behind_nodes() {
  DeviceRates d        = eager_chains();
  d.state_bytes_per_us = 1e15;
  d.tiles              = {{128, 1e15}};
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

/// A chain as (first, last, queries) of its entries, in order.
using Chain = std::vector<std::array<int, 3>>;
std::multiset<Chain> chains_as_written(const EntryList& list) {
  std::multiset<Chain> all;
  for (const Entry* e = list.entries.data(); e != list.entries.data() + list.entries.size(); ++e) {
    if (e->chain <= 0) continue;
    Chain chain;
    for (int k = 0; k <= e->chain; ++k) chain.push_back({e[k].first, e[k].last, e[k].num_queries});
    all.insert(chain);
  }
  return all;
}
std::multiset<Chain> chains(const EntryList& list) { return chains_as_written(with_nodes_first(list)); }
/// Entries that stand alone.
Ranges lone_ranges(const EntryList& list) {
  Ranges all;
  for (const Entry& e : list.entries)
    if (e.chain == 0) all.insert({e.first, e.last, e.num_queries});
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

// --- chains, of up to 16 query tokens with 4 query heads to a kv head ---

TEST(PrefixPlanner, AWholeSmallTreeIsOneChain) {
  PrefixBatch batch  = two_branches();
  const BatchPages p = batch.pages();
  PrefixPlanner planner(heads_32_8, eager_chains());
  ASSERT_EQ(planner.cost().queries_per_chain(), 16);
  ASSERT_TRUE(planner.plan(p));
  expect_right(p, planner.list());
  const Chain branch = {{1024, 1536, 4}, {1536, -1, 1}, {1536, -1, 1}, {1536, -1, 1}, {1536, -1, 1}};
  Chain expected     = {{0, 1024, 8}};
  for (int b = 0; b < 2; ++b) expected.insert(expected.end(), branch.begin(), branch.end());
  EXPECT_EQ(chains(planner.list()), std::multiset<Chain>{expected});
  EXPECT_EQ(planner.list().entries.size(), expected.size());
  for (const Entry& e : planner.list().entries) EXPECT_EQ(e.state, -1);
  EXPECT_EQ(planner.list().num_states(), 0);
  EXPECT_EQ(planner.list().max_queries, 8);
}

TEST(PrefixPlanner, ManyLeavesAreBundledToChains) {
  PrefixBatch batch  = tree_batch({1, 1027}, {2048, 32});
  const BatchPages p = batch.pages();
  for (const bool behind : {false, true}) {
    PrefixPlanner planner(heads_32_8, behind ? eager_chains_behind_nodes() : eager_chains());
    ASSERT_TRUE(planner.plan(p));
    expect_right(p, planner.list());
    const auto chain_of = [&](int leaves) {
      Chain chain = {{0, behind ? 0 : 2048, leaves}};
      chain.insert(chain.end(), static_cast<std::size_t>(leaves), {2048, -1, 1});
      return chain;
    };
    std::multiset<Chain> expected{chain_of(3)};
    for (int i = 0; i < 64; ++i) expected.insert(chain_of(16));
    EXPECT_EQ(chains(planner.list()), expected);
    Ranges root;
    for (int i = 0; behind && i < 33; ++i) root.insert({0, 2048, i < 32 ? 32 : 3});
    EXPECT_EQ(lone_ranges(planner.list()), root);
    EXPECT_EQ(planner.list().num_states(), behind ? 2 * 1027 : 0);
  }
}

TEST(PrefixPlanner, ALeafThatIsLeftOverStandsAlone) {
  PrefixBatch batch = tree_batch({1, 33}, {2048, 32});
  PrefixPlanner planner(heads_32_8, eager_chains());
  ASSERT_TRUE(planner.plan(batch.pages()));
  expect_right(batch.pages(), planner.list());
  EXPECT_EQ(chains(planner.list()).size(), 2u);
  EXPECT_EQ(lone_ranges(planner.list()), (Ranges{{0, -1, 1}}));
  PrefixPlanner behind(heads_32_8, eager_chains_behind_nodes());
  ASSERT_TRUE(behind.plan(batch.pages()));
  expect_right(batch.pages(), behind.list());
  EXPECT_EQ(chains(behind.list()).size(), 2u);
  EXPECT_EQ(lone_ranges(behind.list()), (Ranges{{0, 2048, 1}, {0, 2048, 32}, {2048, -1, 1}}));
}

// Entries of long sequences stand alone, those of short ones at the same node do not.
TEST(PrefixPlanner, LongSequencesAreInNoChain) {
  PrefixBatch batch  = tree_batch({1, 2, 64}, {1024, 256, 256});
  const BatchPages p = batch.pages();
  DeviceRates rates  = eager_chains();
  for (const int most : {63, 64}) {  // for each of four query heads
    rates.chain_tokens = most;
    PrefixPlanner planner(heads_32_8, rates);
    ASSERT_TRUE(planner.plan(p));
    expect_right(p, planner.list());
    EXPECT_EQ(chains(planner.list()).empty(), most == 63);
  }
}

// Where the batch has a full chain for nine of ten teams (here 32, four for each of eight kv heads), they are in
// chains, too.
TEST(PrefixPlanner, LongSequencesAreInChainsThatAreNotSplit) {
  PrefixBatch batch          = tree_batch({1, 2, 64}, {1024, 256, 256});
  const BatchPages p         = batch.pages();
  DeviceRates rates          = eager_chains();
  rates.chain_tokens         = 63;
  const auto makes_chains_of = [&](int tokens, int teams) {
    rates.unsplit_chain_tokens = tokens, rates.teams = teams;
    PrefixPlanner planner(heads_32_8, rates);
    EXPECT_TRUE(planner.plan(p));
    expect_right(p, planner.list());
    return !chains(planner.list()).empty();
  };
  EXPECT_TRUE(makes_chains_of(256, 35));
  EXPECT_FALSE(makes_chains_of(255, 35));
  EXPECT_FALSE(makes_chains_of(256, 36));
  rates.chain_tokens = 64;  // the larger bound holds
  EXPECT_TRUE(makes_chains_of(0, 35));
  EXPECT_TRUE(makes_chains_of(255, 36));
}

// Where chains of one node read many tokens again, every second one reads its leaves first.
TEST(PrefixPlanner, EverySecondChainReadsItsLeavesFirst) {
  PrefixBatch batch = tree_batch({1, 8, 64}, {1024, 64, 32});
  PrefixPlanner planner(heads_32_8, eager_chains());
  ASSERT_TRUE(planner.plan(batch.pages()));
  expect_right(batch.pages(), planner.list());
  Chain nodes_first = {{0, 1024, 16}}, leaves_first = {{0, 0, 16}};
  for (int node = 0; node < 2; ++node) {
    nodes_first.push_back({1024, 1088, 8});
    nodes_first.insert(nodes_first.end(), 8, {1088, -1, 1});
    leaves_first.insert(leaves_first.end(), 8, {1088, -1, 1});
    leaves_first.push_back({1024, 1088, 8});
  }
  leaves_first.push_back({0, 1024, 16});
  EXPECT_EQ(chains_as_written(planner.list()),
            (std::multiset<Chain>{nodes_first, leaves_first, nodes_first, leaves_first}));
  // A chain that begins behind its node has nothing that all of its query tokens share.
  PrefixPlanner behind(heads_32_8, eager_chains_behind_nodes());
  ASSERT_TRUE(behind.plan(batch.pages()));
  expect_right(batch.pages(), behind.list());
  nodes_first[0] = {0, 0, 16};
  EXPECT_EQ(chains_as_written(behind.list()),
            (std::multiset<Chain>{nodes_first, nodes_first, nodes_first, nodes_first}));
  // Two chains read the 64 tokens of a node: a fifth of the 64 + 32 * 8 that are read once, or less.
  for (const int own_tokens : {8, 16}) {
    PrefixBatch few = tree_batch({1, 32}, {64, own_tokens}, 8);
    PrefixPlanner other(heads_32_8, eager_chains());
    ASSERT_TRUE(other.plan(few.pages()));
    expect_right(few.pages(), other.list());
    nodes_first = {{0, 64, 16}}, leaves_first = {{0, 0, 16}};
    nodes_first.insert(nodes_first.end(), 16, {64, -1, 1});
    leaves_first.insert(leaves_first.end(), 16, {64, -1, 1}), leaves_first.push_back({0, 64, 16});
    EXPECT_EQ(chains_as_written(other.list()),
              (std::multiset<Chain>{nodes_first, own_tokens == 8 ? leaves_first : nodes_first}));
  }
}

// Where such nodes are alike, the chains of a node have the same order.
TEST(PrefixPlanner, ChainsOfEverySecondNodeReadTheirLeavesFirst) {
  DeviceRates rates = eager_chains();
  const auto orders = [&](PrefixBatch& batch) {
    PrefixPlanner planner(heads_32_8, rates);
    EXPECT_TRUE(planner.plan(batch.pages()));
    expect_right(batch.pages(), planner.list());
    std::vector<bool> leaves_first;
    for (const Entry& e : planner.list().entries)
      if (e.chain > 0) leaves_first.push_back(e.first == e.last);
    return leaves_first;
  };
  PrefixBatch batch              = tree_batch({3, 96}, {1024, 32});
  const std::vector<bool> turned = {false, false, true, true, false, false};
  EXPECT_EQ(orders(batch), turned);
  // Memory reads a token of 8 heads in 4096 / 4.543e6 us. A chain multiplies it by 64 rows in 262144 / flops_per_us.
  rates.tiles = {{64, 2.92e8}};
  EXPECT_EQ(orders(batch), turned);
  rates.tiles = {{64, 2.9e8}};
  EXPECT_EQ(orders(batch), std::vector<bool>(6));
  rates = eager_chains();
  // A node with four of six chains.
  for (int b = 32; b < 64; ++b) std::copy_n(batch.rows[0].begin(), 32, batch.rows[b].begin());
  EXPECT_EQ(orders(batch), (std::vector<bool>{false, true, false, true, false, true}));
}

TEST(PrefixPlanner, SmallNodesAreBundledToChains) {
  PrefixBatch batch  = tree_batch({1, 64, 256}, {2048, 64, 32});
  const BatchPages p = batch.pages();
  for (const bool behind : {false, true}) {
    PrefixPlanner planner(heads_32_8, behind ? eager_chains_behind_nodes() : eager_chains());
    ASSERT_TRUE(planner.plan(p));
    expect_right(p, planner.list());
    Chain chain = {{0, behind ? 0 : 2048, 16}};
    for (int node = 0; node < 4; ++node) {
      chain.push_back({2048, 2112, 4});
      chain.insert(chain.end(), 4, {2112, -1, 1});
    }
    std::multiset<Chain> expected;
    for (int i = 0; i < 16; ++i) expected.insert(chain);
    EXPECT_EQ(chains(planner.list()), expected);
    EXPECT_EQ(planner.list().num_states(), behind ? 2 * 256 : 0);
  }
}

TEST(PrefixPlanner, ChainsReadShortNodesThemselves) {
  // A page that 32 sequences share, in front of what 16 of them share, or of what four and their neighbours share.
  for (const int members : {16, 4}) {
    PrefixBatch batch;
    for (int b = 0; b < 32; ++b)
      batch.rows.push_back(numbers(0, 1) + numbers(100 + 200 * (b / members), 100) + numbers(90000 + b, 1));
    batch.seq_lens.assign(32, 16 * 102);
    PrefixPlanner planner(heads_32_8, eager_chains());
    ASSERT_TRUE(planner.plan(batch.pages()));
    expect_right(batch.pages(), planner.list());
    Chain chain;
    if (members == 16) {  // one node: its entry begins at the first token
      chain.push_back({0, 16 * 101, 16});
      chain.insert(chain.end(), 16, {16 * 101, -1, 1});
    } else {
      chain.push_back({0, 16, 16});
      for (int node = 0; node < 4; ++node) {
        chain.push_back({16, 16 * 101, 4});
        chain.insert(chain.end(), 4, {16 * 101, -1, 1});
      }
    }
    EXPECT_EQ(chains(planner.list()), (std::multiset<Chain>{chain, chain}));
    EXPECT_EQ(lone_ranges(planner.list()), Ranges{});
    EXPECT_EQ(planner.list().num_states(), 0);
  }
}

TEST(PrefixPlanner, SeveralQueryTokensStayOutOfChains) {
  // Every fourth sequence has three query tokens; one node has none of these.
  PrefixBatch batch;
  batch.cu_seqlens_q = {0};
  for (int b = 0; b < 16; ++b) {
    batch.rows.push_back(numbers(0, 64) + numbers(100 + 100 * (b / 4), 32) + numbers(1000 + 10 * b, 2));
    batch.cu_seqlens_q.push_back(batch.cu_seqlens_q.back() + (b % 4 == 0 && b < 12 ? 3 : 1));
  }
  batch.seq_lens.assign(16, 16 * 98 - 5);
  const BatchPages p = batch.pages();
  PrefixPlanner planner(heads_32_8, eager_chains());
  ASSERT_TRUE(planner.plan(p));
  expect_right(p, planner.list());
  const Chain leaves = {{0, 0, 3}, {1536, -1, 1}, {1536, -1, 1}, {1536, -1, 1}};
  const Chain node   = {{1024, 1536, 4}, {1536, -1, 1}, {1536, -1, 1}, {1536, -1, 1}, {1536, -1, 1}};
  EXPECT_EQ(chains(planner.list()), (std::multiset<Chain>{leaves, leaves, leaves, node}));
  EXPECT_EQ(lone_ranges(planner.list()).count({1536, -1, 3}), 3u);
  // With two query tokens each, there is no chain.
  batch.cu_seqlens_q.clear(), batch.query_len = 2;
  PrefixPlanner plain(heads_32_8, eager());
  ASSERT_TRUE(planner.plan(batch.pages()));
  ASSERT_TRUE(plain.plan(batch.pages()));
  expect_right(batch.pages(), planner.list());
  EXPECT_TRUE(chains(planner.list()).empty());
  EXPECT_EQ(ranges(planner.list()), ranges(plain.list()));
}

TEST(PrefixPlanner, RowsOfAChain) {
  const auto most = [](int q_heads, int kv_heads, int rows) {
    DeviceRates d = eager();
    d.chain_rows  = rows;
    return PrefixPlanner({q_heads, kv_heads, 128, 128, 512}, d).cost().queries_per_chain();
  };
  EXPECT_EQ(most(32, 32, 64), 64);
  EXPECT_EQ(most(32, 8, 64), 16);
  EXPECT_EQ(most(24, 8, 64), 21);
  EXPECT_EQ(most(64, 2, 64), 2);
  EXPECT_EQ(most(96, 2, 64), 0);   // only one query token fits
  EXPECT_EQ(most(128, 1, 64), 0);  // not even one
  EXPECT_EQ(most(32, 32, 1), 0);
  EXPECT_EQ(most(32, 32, 0), 0);
  EXPECT_EQ(most(32, 32, 999), 128);  // the largest tile
}

/// Lists that are wrong in one place are found by expect_right().
TEST(PrefixPlanner, WrongChainsAreFound) {
  PrefixBatch batch  = tree_batch({1, 64, 256}, {2048, 64, 32});
  const BatchPages p = batch.pages();
  PrefixPlanner planner(heads_32_8, eager_chains_behind_nodes());
  ASSERT_TRUE(planner.plan(p));
  const EntryList& right = planner.list();
  ASSERT_TRUE(is_right(p, right));
  std::size_t first = 0;  // of a chain in the middle: an entry without tokens, a node, its four leaves, a node, ...
  while (first < right.entries.size() / 2 || right.entries[first].chain <= 0) ++first;
  const auto is_wrong = [&](const char* name, const auto& change) {
    EntryList list = right;
    change(list, &list.entries[first]);
    EXPECT_FALSE(is_right(p, list)) << name;
  };
  is_wrong("a shorter chain", [](auto&, Entry* e) { --e->chain; });
  is_wrong("a longer chain", [](auto&, Entry* e) { ++e->chain; });
  is_wrong("a chain beyond the list", [](auto&, Entry* e) { e->chain = 1 << 20; });
  is_wrong("no chain", [](auto&, Entry* e) { e->chain = 0; });
  is_wrong("two numbers exchanged", [](auto&, Entry* e) { std::swap(e[2].chain, e[3].chain); });
  is_wrong("a number less", [](auto&, Entry* e) { e[2].chain = 0; });
  is_wrong("a chain in a chain", [](auto&, Entry* e) { e[1].chain = 4; });
  is_wrong("another state", [](auto&, Entry* e) { e[3].state = 0; });
  is_wrong("another kv head", [](auto&, Entry* e) { e[3].kv_head = 1; });
  is_wrong("the output", [](auto&, Entry* e) {
    for (int k = 0; k <= 20; ++k) e[k].state = -1;
  });
  is_wrong("a run outside", [](auto&, Entry* e) { e->num_queries -= 1; });
  is_wrong("no queries", [](auto&, Entry* e) { e[2].num_queries = 0; });
  is_wrong("the leaf of another", [](auto&, Entry* e) { std::swap(e[2].query_begin, e[3].query_begin); });
  is_wrong("a leaf twice", [](auto&, Entry* e) { e[3].query_begin = e[2].query_begin, e[3].sequence = e[2].sequence; });
  is_wrong("a node before its time", [](auto&, Entry* e) { e[1].first = 2016; });
  is_wrong("a node that begins late", [](auto&, Entry* e) { e[1].first = 2080; });
  is_wrong("a node of the next four", [](auto&, Entry* e) { e[1].query_begin += 4, e[1].sequence = e[6].sequence; });
  is_wrong("a first entry to the end", [](auto&, Entry* e) { e->first = 2048, e->last = -1; });
  is_wrong("an empty entry elsewhere", [](auto&, Entry* e) { e[1].first = e[1].last = 0; });
  is_wrong("an older query token", [](auto& l, Entry* e) { l.queries[e->query_begin].behind = 2; });
  is_wrong("a mask", [](auto& l, Entry* e) { l.queries[e->query_begin].mask = 0; });
  is_wrong("a state more", [](auto& l, Entry*) { ++l.state_begin.back(); });
  is_wrong("states for entries of the chain", [](auto& l, Entry* e) {
    for (std::size_t t = l.queries[e->query_begin].token + 1; t < l.state_begin.size(); ++t) ++l.state_begin[t];
  });
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
      batch.table        = table;
      const BatchPages p = batch.pages();
      for (const DeviceRates& rates : {eager(), eager_chains()}) {
        PrefixPlanner planner(heads_32_8, rates);
        ASSERT_EQ(planner.plan(p), shape.packed && table != PrefixBatch::Table::none);
        EXPECT_TRUE(planner.holds(p));
        if (planner.list().entries.empty()) continue;
        expect_right(p, planner.list());
        if (HasFatalFailure()) return;
      }
    }
}

/// Pages behind a sequence's end lie in the table, are garbage, and change nothing.
TEST(PrefixPlanner, ReadsNoPageBehindASequence) {
  std::mt19937 random(4);
  for (int i = 0; i < 200; ++i) {
    PrefixBatch batch       = random_batch(random, 20, 10);
    const DeviceRates rates = i % 2 == 0 ? eager() : eager_chains();
    PrefixPlanner one(heads_32_8, rates), other(heads_32_8, rates);
    const bool packed = one.plan(batch.pages(1));
    ASSERT_EQ(other.plan(batch.pages(2)), packed);
    ASSERT_EQ(ranges(one.list()), ranges(other.list()));
  }
}

// --- published trees ---

constexpr DecodeHeads pat_heads[] = {
    {32, 32, 128, 128, 512}, {16, 8, 128, 128, 512}, heads_32_8, {64, 8, 128, 128, 512}};

/// Calls test(tree, h, pages) for each tree and each of pat_heads.
template <class Test>
void for_each_published_tree(const Test& test) {
  for (const PatTree& tree : pat_trees())
    for (int h = 0; h < 4; ++h) {
      SCOPED_TRACE(testing::Message() << "tree " << tree.number << ", heads " << pat_heads[h].num_q_heads << "/"
                                      << pat_heads[h].num_kv_heads);
      PrefixBatch batch  = tree_batch(tree.nodes, tree.tokens);
      const BatchPages p = batch.pages();
      test(tree, h, p);
    }
}

TEST(PrefixPlanner, PublishedTrees) {
  for_each_published_tree([&](const PatTree& tree, int h, const BatchPages& p) {
    PrefixPlanner planner(pat_heads[h], DeviceRates{});
    const bool packed = planner.plan(p);
    EXPECT_EQ(packed, tree.number < 19);
    if (!packed) return;
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
  });
}

TEST(PrefixPlanner, PublishedTreesWithChains) {
  DeviceRates with_chains;
  with_chains.chain_rows = 64;
  for_each_published_tree([&](const PatTree&, int h, const BatchPages& p) {
    PrefixPlanner without(pat_heads[h], DeviceRates{}), planner(pat_heads[h], with_chains);
    ASSERT_EQ(planner.plan(p), without.plan(p));
    if (planner.list().entries.empty()) return;
    expect_right(p, planner.list());
    EXPECT_LT(planner.packed_us(), without.packed_us());
    EXPECT_LT(planner.list().num_states(), without.list().num_states());
    // Whole levels fit: every leaf is in a chain.
    for (const Entry& e : planner.list().entries) EXPECT_TRUE(e.last >= 0 || e.chain < 0);
  });
}

// --- when a plan holds ---

void expect_holds_while_sequences_grow(PrefixBatch batch, const DeviceRates& rates) {
  PrefixPlanner planner(heads_32_8, rates);
  EXPECT_FALSE(planner.holds(batch.pages()));  // of no plan
  ASSERT_TRUE(planner.plan(batch.pages()));
  EXPECT_TRUE(planner.holds(batch.pages(2)));
  for (int& length : batch.seq_lens) length += 5;  // in the last page
  EXPECT_TRUE(planner.holds(batch.pages()));
  for (auto& row : batch.rows) row.push_back(30000 + static_cast<int>(&row - batch.rows.data()));
  for (int& length : batch.seq_lens) length += 16;
  EXPECT_TRUE(planner.holds(batch.pages()));
  expect_right(batch.pages(), planner.list());
  for (auto& row : batch.rows)
    for (int& page : row) page += 7;  // all pages moved
  EXPECT_TRUE(planner.holds(batch.pages()));
  expect_right(batch.pages(), planner.list());
}

TEST(PrefixPlanner, HoldsWhileSequencesGrow) { expect_holds_while_sequences_grow(two_branches(), eager()); }

TEST(PrefixPlanner, HoldsWhileSequencesOfChainsGrow) {
  expect_holds_while_sequences_grow(two_branches(), eager_chains());
  PrefixBatch batch = tree_batch({1, 64, 256}, {2048, 64, 32}, 16);
  for (int& length : batch.seq_lens) length -= 10;
  expect_holds_while_sequences_grow(batch, eager_chains());
  expect_holds_while_sequences_grow(batch, eager_chains_behind_nodes());  // first entries have no tokens
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
    for (const DeviceRates& rates : {eager(), eager_chains()}) {
      PrefixBatch batch = two_branches();
      PrefixPlanner planner(heads_32_8, rates);
      ASSERT_TRUE(planner.plan(batch.pages()));
      change(batch);
      EXPECT_FALSE(planner.holds(batch.pages()));
    }
  }
}

TEST(PrefixPlanner, RandomChangesOfPages) {
  // holds() agrees with the entries' own rule.
  std::mt19937 random(5);
  int held = 0, broken = 0;
  for (int i = 0; i < 4000; ++i) {
    PrefixBatch batch = random_batch(random, i % 4 < 2 ? 12 : 40, 8);
    PrefixPlanner planner(heads_32_8, i % 2 == 0 ? eager() : eager_chains());
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
