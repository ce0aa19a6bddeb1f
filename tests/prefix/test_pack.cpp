// SPDX-License-Identifier: Apache-2.0
// Lists of entries against the tables, and their costs against all other ways to divide small trees.
#include "src/plan/prefix/pack.hpp"

#include "src/plan/prefix/planner.hpp"
#include "tests/prefix/prefix_batch.hpp"
#include "tests/prefix/right_list.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace pagoda::test {
namespace {

using namespace detail;

/// Machines on which different choices pay: from "states cost nothing" to "items cost everything".
DeviceRates random_rates(std::mt19937& random) {
  const auto between = [&](double low, double high) {
    return low * std::pow(high / low, static_cast<double>(random()) / 4294967296.0);
  };
  DeviceRates d;
  d.memory_bytes_per_us = between(1e5, 1e7);
  d.cache_bytes_per_us  = d.memory_bytes_per_us * between(1, 4);
  d.cache_bytes         = random() % 2 ? 1e12 : between(1e4, 1e7);
  d.state_bytes_per_us  = d.memory_bytes_per_us * between(0.1, 10);
  d.item_us             = between(0.01, 10);
  d.list_us             = between(0.001, 10);
  if (random() % 3 == 0) d.tiles = {{16, 1e8}, {64, 2e8}};
  if (random() % 3 == 0) d.tiles = {{5, 1e8}};
  for (RowTile& tile : d.tiles) tile.flops_per_us *= between(0.01, 1);
  return d;
}

DecodeHeads random_heads(std::mt19937& random) {
  const int kv_heads = 1 + static_cast<int>(random() % 8), group = 1 + static_cast<int>(random() % 12);
  return {kv_heads * (random() % 20 ? group : 150), kv_heads, 128, 128, 512};
}

/// Of a list, entry by entry. For caches that keep everything.
double price(const BatchPages& p, const CostModel& cost, const EntryList& list, double first_reads) {
  double us = cost.list() + first_reads;
  for (const Entry& e : list.entries) {
    const int last = e.last < 0 ? p.seq_lens[e.sequence] : e.last;
    us += (last - e.first) * cost.pass(e.num_queries) + cost.item(e.num_queries);
    if (e.state >= 0) us += e.num_queries * cost.state();
  }
  return us;
}

/// Costs of reading everything for the first time, beyond reading it from the second-level cache.
double first_reads(const BatchPages& p, const PrefixForest& forest, const CostModel& cost) {
  double tokens = 0;
  for (const auto& v : forest.nodes()) tokens += cost.kept_in_cache(std::int64_t(v.pages()) * p.page_size);
  for (const auto& g : forest.groups()) tokens += double(g.own_tokens);
  return tokens * cost.first_read();
}

TEST(PrefixPacking, ListsOfRandomForests) {
  std::mt19937 random(2);
  PrefixForest forest;
  PrefixPacking packing;
  EntryList list;
  int shared = 0;
  for (int i = 0; i < 1500; ++i) {
    SCOPED_TRACE(i);
    PrefixBatch batch  = random_batch(random, i % 3 == 0 ? 80 : 12, i % 5 == 0 ? 40 : 6);
    DeviceRates device = random_rates(random);
    if (i % 2 == 0) device.cache_bytes = 1e15;
    const CostModel cost(random_heads(random), device);
    const BatchPages p = batch.pages();
    if (!forest.build(p)) continue;
    ++shared;
    packing.choose(p, forest, cost);
    packing.write(list);
    expect_right(p, list);
    if (HasFatalFailure()) return;
    EXPECT_LE(list.max_queries, cost.queries_per_entry());
    if (i % 2 == 0) {
      const double us = price(p, cost, list, first_reads(p, forest, cost));
      EXPECT_NEAR(us, packing.packed_us(), 1e-9 * us);
    }
  }
  EXPECT_GT(shared, 700);
}

/// Tries every way to divide the paths of a tree into entries. Branches are numbered as they are met: child nodes, and
/// leaves one by one. Bit i of `begins`: branch i begins a new entry.
class EveryDivision {
 public:
  EveryDivision(const PrefixForest& forest, const CostModel& cost, int page_size)
      : forest_(forest), cost_(cost), page_size_(page_size) {}
  int num_branches() const {
    int n = static_cast<int>(forest_.nodes().size()) - forest_.num_roots();
    for (const auto& v : forest_.nodes())
      for (const auto& g : forest_.groups().subspan(v.first_group, v.num_groups)) n += g.count;
    return n;
  }
  double us(unsigned begins) {
    begins_ = begins, branch_ = 0, us_ = 0;
    for (const auto& g : forest_.unshared())
      us_ += double(g.own_tokens) * cost_.pass(g.num_queries) + g.count * cost_.item(g.num_queries);
    for (int root = 0; root < forest_.num_roots(); ++root) node(root, 0, true);
    return us_;
  }

 private:
  bool begins() { return begins_ >> branch_++ & 1; }
  /// above: weighted tokens before the node that its entries include.
  void node(int index, double above, bool from_root) {
    const auto& v      = forest_.nodes()[index];
    const double range = above + cost_.weighted(std::int64_t(v.pages()) * page_size_);
    int queries        = 0;
    for (const auto& g : forest_.groups().subspan(v.first_group, v.num_groups)) {
      us_ += double(g.own_tokens) * cost_.pass(g.num_queries);
      for (int leaf = 0; leaf < g.count; ++leaf) {
        const bool begin = begins();
        us_ += cost_.item(g.num_queries) + (begin ? 0 : range * cost_.pass(g.num_queries));
        if (begin || !from_root) us_ += g.num_queries * cost_.state();
        if (begin) queries += g.num_queries;
      }
    }
    for (int c = v.first_child; c < v.first_child + v.num_children; ++c) {
      const bool begin = begins();
      if (begin) queries += forest_.nodes()[c].num_queries;
      node(c, begin ? 0 : range, !begin && from_root);
    }
    if (queries > 0) us_ += range * cost_.pass(queries) + cost_.item(queries) + queries * cost_.state();
  }
  const PrefixForest& forest_;
  const CostModel& cost_;
  int page_size_, branch_ = 0;
  unsigned begins_ = 0;
  double us_       = 0;
};

/// Whether the packing promises the best division: see PrefixPacking.
bool promised(const BatchPages& p, const PrefixForest& forest) {
  const auto few_branches = [&](const PrefixForest::Node& v) {
    int units = v.num_children;
    for (const auto& g : forest.groups().subspan(v.first_group, v.num_groups)) units += g.count;
    return units <= 4;
  };
  return !p.cu_seqlens_q || p.query_tokens() <= 63 ||
         std::all_of(forest.nodes().begin(), forest.nodes().end(), few_branches);
}

/// Compares the packing of a tree with every other division. Returns whether the tree was small enough.
bool compare_with_every_division(PrefixBatch& batch, const CostModel& cost, int most_branches) {
  static PrefixForest forest;
  static PrefixPacking packing;
  const BatchPages p = batch.pages();
  if (!forest.build(p)) return false;
  EveryDivision every(forest, cost, p.page_size);
  if (every.num_branches() > most_branches) return false;
  packing.choose(p, forest, cost);
  const double first = first_reads(p, forest, cost);
  EXPECT_NEAR(every.us(0), packing.plain_us() - first, 1e-9 * packing.plain_us());
  double best = every.us(0);
  for (unsigned begins = 1; begins < 1u << every.num_branches(); ++begins) best = std::min(best, every.us(begins));
  const double chosen = packing.packed_us() - first - cost.list();
  EXPECT_GE(chosen, best * (1 - 1e-9));
  EXPECT_LE(chosen, best * (promised(p, forest) ? 1 + 1e-9 : 1.05));
  return true;
}

TEST(PrefixPacking, NoDivisionOfASmallTreeIsCheaper) {
  std::mt19937 random(3);
  int trees = 0;
  for (int i = 0; i < 30000; ++i) {
    SCOPED_TRACE(i);
    PrefixBatch batch = random_batch(random, 9, 6);
    trees += compare_with_every_division(batch, CostModel(random_heads(random), random_rates(random)), 12);
  }
  EXPECT_GT(trees, 8000);
}

TEST(PrefixPacking, NoDivisionOfAWideTreeIsCheaper) {
  // Pairs of sequences behind one root, with tiles that not all of them fill.
  std::mt19937 random(6);
  const auto up_to = [&](int n) { return static_cast<int>(random() % (static_cast<unsigned>(n) + 1)); };
  int trees        = 0;
  for (int i = 0; i < 150; ++i) {
    SCOPED_TRACE(i);
    PrefixBatch batch;
    batch.query_len = 1 + up_to(1);
    const int root = 1 + up_to(3), pairs = 5;
    for (int b = 0; b < 2 * pairs; ++b) {
      std::vector<int> row;
      for (int page = 0; page < root; ++page) row.push_back(page);
      if (b % 2 == 1) row = batch.rows.back(), row.pop_back();
      for (int page = 1 + up_to(4); b % 2 == 0 && page > 0; --page) row.push_back(100 * b + page);
      row.push_back(1000 + b);
      batch.rows.push_back(row);
      batch.seq_lens.push_back(static_cast<int>(row.size()) * batch.page_size);
    }
    DeviceRates device = random_rates(random);
    device.tiles       = {{2 + up_to(14), 1e6 * (1 + up_to(100))}};
    trees += compare_with_every_division(batch, CostModel({4, 4, 128, 128, 512}, device), 15);
  }
  EXPECT_EQ(trees, 150);
}

}  // namespace
}  // namespace pagoda::test
