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

/// The same with chains of up to 64 query rows, or with none.
DeviceRates random_rates_of_chains(std::mt19937& random) {
  DeviceRates d          = random_rates(random);
  d.chain_rows           = std::vector{0, 4, 16, 64}[random() % 4];
  d.chain_entry_us       = d.item_us * std::vector{0., 0.1, 0.5, 2.}[random() % 4];
  d.chain_tokens         = std::vector{1 << 20, 1 << 20, 100, 8, 0}[random() % 5];
  d.unsplit_chain_tokens = std::vector{0, 1 << 20, 200}[random() % 3];
  if (random() % 2 == 0) d.teams = 1 + static_cast<int>(random() % 20);  // so few that a batch has as many full chains
  return d;
}

/// Of a list, entry by entry. For caches that keep everything.
double price(const BatchPages& p, const CostModel& cost, const EntryList& list, double first_reads) {
  double us = cost.list() + first_reads;
  for (const Entry& e : with_nodes_first(list).entries) {
    const int last = e.last < 0 ? p.seq_lens[e.sequence] : e.last;
    us += (last - e.first) * (e.chain == 0 ? cost.pass(e.num_queries) : cost.chain_pass());
    us += e.chain == 0 ? cost.item(e.num_queries) : e.chain > 0 ? cost.chain_item() : cost.chain_entry();
    if (e.state >= 0 && e.chain >= 0) us += e.num_queries * cost.state();
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

void compare_lists_with_tables(DeviceRates (*rates)(std::mt19937&)) {
  std::mt19937 random(2);
  PrefixForest forest;
  PrefixPacking packing;
  EntryList list;
  int shared = 0;
  for (int i = 0; i < 1500; ++i) {
    SCOPED_TRACE(i);
    PrefixBatch batch  = random_batch(random, i % 3 == 0 ? 80 : 12, i % 5 == 0 ? 40 : 6);
    DeviceRates device = rates(random);
    if (i % 2 == 0) device.cache_bytes = 1e15;
    const CostModel cost(random_heads(random), device);
    const BatchPages p = batch.pages();
    if (!forest.build(p)) continue;
    ++shared;
    packing.choose(p, forest, cost);
    packing.write(list);
    ASSERT_TRUE(is_right(p, list));
    EXPECT_LE(list.max_queries, cost.queries_per_entry());
    if (i % 2 == 0) {
      const double us = price(p, cost, list, first_reads(p, forest, cost));
      EXPECT_NEAR(us, packing.packed_us(), 1e-9 * us);
    }
  }
  EXPECT_GT(shared, 700);
}

TEST(PrefixPacking, ListsOfRandomForests) { compare_lists_with_tables(random_rates); }
TEST(PrefixPacking, ChainsOfRandomForests) { compare_lists_with_tables(random_rates_of_chains); }

/// Every small subtree is in one chain, and only sequences with several query tokens, or alone, are in none.
TEST(PrefixPacking, ChainsOfUniformForests) {
  std::mt19937 random(7);
  PrefixForest forest;
  PrefixPacking packing;
  EntryList list;
  constexpr DecodeHeads heads[] = {
      {32, 32, 128, 128, 512}, {16, 8, 128, 128, 512}, {32, 8, 128, 128, 512}, {64, 8, 128, 128, 512}};
  int chains = 0;
  for (int i = 0; i < 1200; ++i) {
    SCOPED_TRACE(i);
    PrefixBatch batch  = random_batch(random, 150, 12);
    batch.query_len    = 1;
    DeviceRates device = random_rates(random);
    device.tiles = {{64, 1e8}}, device.chain_rows = 64;
    if (i % 2 == 0) batch.cu_seqlens_q.clear();
    const CostModel cost(heads[i % 4], device);
    const BatchPages p = batch.pages();
    const int most     = 64 / (heads[i % 4].num_q_heads / heads[i % 4].num_kv_heads);
    ASSERT_EQ(cost.queries_per_chain(), most);
    if (!forest.build(p)) continue;
    packing.choose(p, forest, cost);
    packing.write(list);
    ASSERT_TRUE(is_right(p, list));
    std::vector<int> place(static_cast<std::size_t>(p.query_tokens()));  // first entry of the chain; negative: none
    for (int e = 0, first = 0; e < static_cast<int>(list.entries.size()); ++e) {
      const Entry& entry = list.entries[e];
      if (entry.chain > 0) first = e, ++chains;
      if (entry.last >= 0) continue;
      for (int q = entry.query_begin; q < entry.query_begin + entry.num_queries; ++q)
        place[list.queries[q].token] = entry.chain < 0 ? first : -1;
    }
    for (const auto& v : forest.nodes()) {
      if (v.num_queries > most) continue;
      std::vector<int> members;  // batch entries below
      for (int b = 0; b < p.batch; ++b)
        if (p.num_queries(b) > 0 && p.shareable_pages(b) >= v.last_page &&
            common_end(p.row(b), p.row(v.member), 0, v.last_page) == v.last_page)
          members.push_back(b);
      if (std::any_of(members.begin(), members.end(), [&](int b) { return p.num_queries(b) > 1; })) continue;
      for (const int b : members) {
        ASSERT_GE(place[p.query_begin(b)], 0);
        ASSERT_EQ(place[p.query_begin(b)], place[p.query_begin(members[0])]) << "batch entry " << b;
      }
    }
  }
  EXPECT_GT(chains, 3000);
}

/// Tries every way to divide the paths of a tree into entries. Branches are numbered as they are met: child nodes, and
/// leaves one by one. What goes into chains of a node is one branch. Bit i of `begins`: branch i begins a new entry.
class EveryDivision {
 public:
  EveryDivision(const BatchPages& pages, const PrefixForest& forest, const CostModel& cost)
      : pages_(pages), forest_(forest), cost_(cost), page_size_(pages.page_size) {}
  int num_branches() {
    us(0);
    return branch_;
  }
  double us(unsigned begins) {
    begins_ = begins, branch_ = 0, us_ = 0;
    for (const auto& g : forest_.unshared())
      us_ += double(g.own_tokens) * cost_.pass(g.num_queries) + g.count * cost_.item(g.num_queries);
    for (int root = 0; root < forest_.num_roots(); ++root)
      if (is_small(root))
        chains({unit_of(root)}, 0, false);
      else
        node(root, 0, true);
    return us_;
  }

 private:
  struct Unit {  ///< what is in one chain: a small node with all below it, or a leaf
    int queries = 0, entries = 0;
    double tokens = 0;
    bool is_node  = false;
  };
  bool may_be_in_chains(const PrefixForest::Group& g) const {
    return cost_.queries_per_chain() > 0 && g.num_queries == 1 &&
           g.own_tokens <= g.count * cost_.chain_tokens(pages_.query_tokens());
  }
  bool is_small(int index) const {
    const auto& v = forest_.nodes()[index];
    if (v.num_queries > cost_.queries_per_chain()) return false;
    for (const auto& g : forest_.groups().subspan(v.first_group, v.num_groups))
      if (!may_be_in_chains(g)) return false;
    for (int c = v.first_child; c < v.first_child + v.num_children; ++c)
      if (!is_small(c)) return false;
    return true;
  }
  Unit unit_of(int index) const {
    const auto& v = forest_.nodes()[index];
    Unit unit{v.num_queries, 1, cost_.weighted(std::int64_t(v.pages()) * page_size_), true};
    for (const auto& g : forest_.groups().subspan(v.first_group, v.num_groups))
      unit.entries += g.count, unit.tokens += double(g.own_tokens);
    for (int c = v.first_child; c < v.first_child + v.num_children; ++c) {
      const Unit below = unit_of(c);
      unit.entries += below.entries, unit.tokens += below.tokens;
    }
    return unit;
  }
  /// Adds the costs of units in chains that read `range` weighted tokens besides.
  void chains(const std::vector<Unit>& units, double range, bool states) {
    for (std::size_t i = 0; i < units.size();) {
      Unit chain{0, 1};
      const std::size_t first = i;
      for (; i < units.size() && chain.queries + units[i].queries <= cost_.queries_per_chain(); ++i)
        chain.queries += units[i].queries, chain.entries += units[i].entries, chain.tokens += units[i].tokens;
      if (states) us_ += chain.queries * cost_.state();
      if (i == first + 1 && !units[first].is_node) {
        us_ += (chain.tokens + range) * cost_.pass(1) + cost_.item(1);
        continue;
      }
      if (i == first + 1) --chain.entries;
      us_ += (chain.tokens + range) * cost_.chain_pass() + cost_.chain_item();
      us_ += (chain.entries - 1) * cost_.chain_entry();
    }
  }
  bool begins() { return begins_ >> branch_++ & 1; }
  /// above: weighted tokens before the node that its entries include.
  void node(int index, double above, bool from_root) {
    const auto& v      = forest_.nodes()[index];
    const double range = above + cost_.weighted(std::int64_t(v.pages()) * page_size_);
    int queries        = 0;
    std::vector<Unit> units;  // in chains
    for (int c = v.first_child; c < v.first_child + v.num_children; ++c)
      if (is_small(c)) units.push_back(unit_of(c));
    for (const auto& g : forest_.groups().subspan(v.first_group, v.num_groups)) {
      if (may_be_in_chains(g)) {
        for (const int b : forest_.leaves().subspan(g.first_leaf, g.count))
          units.push_back({1, 1, double(pages_.seq_len(b) - v.last_page * page_size_)});
        continue;
      }
      us_ += double(g.own_tokens) * cost_.pass(g.num_queries);
      for (int leaf = 0; leaf < g.count; ++leaf) {
        const bool begin = begins();
        us_ += cost_.item(g.num_queries) + (begin ? 0 : range * cost_.pass(g.num_queries));
        if (begin || !from_root) us_ += g.num_queries * cost_.state();
        if (begin) queries += g.num_queries;
      }
    }
    if (!units.empty()) {
      const bool begin = begins();
      chains(units, begin ? 0 : range, begin || !from_root);
      if (begin)
        for (const Unit& unit : units) queries += unit.queries;
    }
    for (int c = v.first_child; c < v.first_child + v.num_children; ++c) {
      if (is_small(c)) continue;
      const bool begin = begins();
      if (begin) queries += forest_.nodes()[c].num_queries;
      node(c, begin ? 0 : range, !begin && from_root);
    }
    if (queries > 0) us_ += range * cost_.pass(queries) + cost_.item(queries) + queries * cost_.state();
  }
  const BatchPages& pages_;
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
  EveryDivision every(p, forest, cost);
  if (every.num_branches() > most_branches) return false;
  packing.choose(p, forest, cost);
  const double first = first_reads(p, forest, cost);
  if (cost.queries_per_chain() == 0) {
    EXPECT_NEAR(every.us(0), packing.plain_us() - first, 1e-9 * packing.plain_us());
  }
  double best = every.us(0);
  for (unsigned begins = 1; begins < 1u << every.num_branches(); ++begins) best = std::min(best, every.us(begins));
  const double chosen = packing.packed_us() - first - cost.list();
  EXPECT_GE(chosen, best * (1 - 1e-9));
  EXPECT_LE(chosen, best * (promised(p, forest) ? 1 + 1e-9 : 1.05));
  return true;
}

void compare_small_trees(DeviceRates (*rates)(std::mt19937&)) {
  std::mt19937 random(3);
  int trees = 0;
  for (int i = 0; i < 30000; ++i) {
    SCOPED_TRACE(i);
    PrefixBatch batch       = random_batch(random, 9, 6);
    const DecodeHeads heads = random_heads(random);
    trees += compare_with_every_division(batch, CostModel(heads, rates(random)), 12);
  }
  EXPECT_GT(trees, 8000);
}

TEST(PrefixPacking, NoDivisionOfASmallTreeIsCheaper) { compare_small_trees(random_rates); }
TEST(PrefixPacking, NoDivisionOfASmallTreeWithChainsIsCheaper) { compare_small_trees(random_rates_of_chains); }

void compare_wide_trees(bool chains) {
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
    if (chains) device.chain_rows = 2 + up_to(6);
    trees += compare_with_every_division(batch, CostModel({4, 4, 128, 128, 512}, device), 15);
  }
  EXPECT_EQ(trees, 150);
}

TEST(PrefixPacking, NoDivisionOfAWideTreeIsCheaper) { compare_wide_trees(false); }
TEST(PrefixPacking, NoDivisionOfAWideTreeWithChainsIsCheaper) { compare_wide_trees(true); }

}  // namespace
}  // namespace pagoda::test
