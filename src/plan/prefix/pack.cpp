// SPDX-License-Identifier: Apache-2.0
#include "src/plan/prefix/pack.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

namespace pagoda::detail {

/// Cost of leaves that read `weight` tokens besides their own, with or without partial states.
inline double PrefixPacking::group_us(const PrefixForest::Group& g, double weight, bool states) const {
  const double tokens = g.count * weight + static_cast<double>(g.own_tokens);
  return tokens * cost_->pass(g.num_queries) +
         g.count * (cost_->item(g.num_queries) + (states ? g.num_queries * cost_->state() : 0));
}

/// The same in a plain decode.
inline double PrefixPacking::plain_group_us(const PrefixForest::Group& g, double weight) const {
  const double tokens = g.count * weight + static_cast<double>(g.own_tokens);
  return tokens * cost_->plain_pass(g.num_queries) + g.count * cost_->plain_item(g.num_queries);
}

/// Collects the branches of a node. The costs of its children and bundle_ must be known.
template <bool chains>
inline void PrefixPacking::gather(int node) {
  const PrefixForest::Node& v = forest_->nodes()[node];
  branches_.clear();
  for (int c = v.first_child; c < v.first_child + v.num_children; ++c)
    if (!chains || !chains_.is_small(c))
      branches_.push_back({c, forest_->nodes()[c].num_queries, 1, us_[at(c)], 0, 0, 0, 0});
  for (int g = v.first_group; g < v.first_group + v.num_groups; ++g) {
    const PrefixForest::Group& group = forest_->groups()[g];
    if (chains && chains_.is_in_bundle(group)) continue;
    branches_.push_back({~g, group.num_queries, group.count, group_us(group, 0, true),
                         group.count * cost_->pass(group.num_queries), group.count * group.num_queries * cost_->state(),
                         0, 0});
  }
  if (chains && bundle_.queries > 0)
    branches_.push_back({bundle, bundle_.queries, 1, bundle_.us, bundle_.slope, bundle_.states, 0, 0});
}

/// Sets the times of a node whose entries cost the same for every subset of its branches, for all numbers of ancestors.
/// Each branch begins new entries if that saves more than its partial states cost. The loops over ancestors are
/// vectorized.
template <bool chains>
inline void PrefixPacking::set_costs_in_tile(int node) {
  const PrefixForest::Node& v = forest_->nodes()[node];
  const double *weight = &weight_[at(node)], pass = cost_->pass(v.num_queries), item = cost_->item(v.num_queries);
  double shared[max_nodes], extended[max_nodes] = {};
  for (int up = 0; up < max_nodes; ++up) shared[up] = weight[up] * pass + item;
  for (int c = v.first_child; c < v.first_child + v.num_children; ++c) {
    if (chains && chains_.is_small(c)) continue;
    const double *us = &us_[at(c)], begin = us[0] + forest_->nodes()[c].num_queries * cost_->state();
    for (int up = 0; up < max_nodes; ++up) extended[up] += us[up + 1], shared[up] += std::min(begin, us[up + 1]);
  }
  const auto add = [&](double begin, double slope, double states) {
    double extend[max_nodes];
    for (int up = 0; up < max_nodes; ++up) extend[up] = begin + weight[up] * slope;
    if (depth_[node] < max_nodes) extend[depth_[node]] -= states;  // entries that begin at the root have none
    for (int up = 0; up < max_nodes; ++up)
      extended[up] += extend[up], shared[up] += std::min(begin + states, extend[up]);
  };
  for (int g = v.first_group; g < v.first_group + v.num_groups; ++g) {
    const PrefixForest::Group& group = forest_->groups()[g];
    if (chains && chains_.is_in_bundle(group)) continue;
    add(group_us(group, 0, true), group.count * cost_->pass(group.num_queries),
        group.count * group.num_queries * cost_->state());
  }
  if (chains && bundle_.queries > 0) add(bundle_.us, bundle_.slope, bundle_.states);
  double* us = &us_[at(node)];
  for (int up = 0; up < max_nodes; ++up) us[up] = std::min(shared[up], extended[up]);
}

/// Cost of a branch that does not begin new entries. Sequences whose entries begin at a root write no partial states.
inline double PrefixPacking::extend_us(const Branch& b, int node, int ancestors) const {
  if (b.child >= 0) return us_[at(b.child) + ancestors + 1];
  return b.begin_us + weight_[at(node) + ancestors] * b.slope - (ancestors == depth_[node] ? b.states : 0);
}

/// Sets Branch::begins as set_costs_in_tile() has decided.
inline void PrefixPacking::choose_in_tile(int node, int ancestors) {
  double extended = 0;
  for (const Branch& b : branches_) extended += extend_us(b, node, ancestors);
  // The two may be the same sum, rounded differently.
  const bool shared = us_[at(node) + ancestors] < extended * (1 - 1e-12);
  for (Branch& b : branches_) {
    const double begin = b.begin_us + b.count * b.queries * cost_->state();
    b.begins           = shared && begin < extend_us(b, node, ancestors) ? b.count : 0;
  }
}

/// Whether all numbers of leaves and children that begin new entries can be tried.
inline bool PrefixPacking::has_few_choices() const {
  int choices = 1;
  for (const Branch& b : branches_) {
    if (b.count >= most_choices) return false;
    choices *= b.count + 1;
    if (choices > most_choices) return false;
  }
  return true;
}

/// Computes the costs of all choices for the gathered node, for `columns` numbers of ancestors from `ancestors` on, and
/// how many query tokens begin new entries. Returns the number of choices. In choice c, the number of units of branch
/// i that begin new entries is its digit in the mixed radix of the branches' counts plus one, the first one lowest.
/// Loops over columns are vectorized.
template <int columns>
int PrefixPacking::sum_choices(int node, int ancestors, double (*us)[columns], int* begun) const {
  const double* const weight = &weight_[at(node) + ancestors];
  int choices                = 1;
  begun[0]                   = 0;
  for (int up = 0; up < columns; ++up) us[0][up] = 0;
  for (const Branch& b : branches_) {
    double extend[columns];  // of one unit
    for (int up = 0; up < columns; ++up) extend[up] = extend_us(b, node, ancestors + up) / b.count;
    const double begin = b.begin_us / b.count;
    for (int n = b.count; n >= 0; --n)
      for (int c = 0; c < choices; ++c) {
        const int to = n * choices + c;
        begun[to]    = begun[c] + n * b.queries;
        if (n == b.count)  // times for max_nodes ancestors are infinite
          for (int up = 0; up < columns; ++up) us[to][up] = us[c][up] + b.begin_us;
        else
          for (int up = 0; up < columns; ++up) us[to][up] = us[c][up] + n * begin + (b.count - n) * extend[up];
      }
    choices *= b.count + 1;
  }
  for (int c = 0; c < choices; ++c) {
    const double pass = cost_->pass(begun[c]), fixed = cost_->item(begun[c]) + begun[c] * cost_->state();
    for (int up = 0; up < columns; ++up) us[c][up] += weight[up] * pass + fixed;
  }
  return choices;
}

/// Sets the times of the gathered node, which has few choices, for all numbers of ancestors.
inline void PrefixPacking::set_costs_of_few(int node) {
  double us[most_choices][max_nodes];
  int begun[most_choices];
  const int choices = sum_choices<max_nodes>(node, 0, us, begun);
  for (int c = 1; c < choices; ++c)
    for (int up = 0; up < max_nodes; ++up) us[0][up] = std::min(us[0][up], us[c][up]);
  std::copy(us[0], us[0] + max_nodes, &us_[at(node)]);
}

/// Sets Branch::begins to the best of few choices.
inline void PrefixPacking::choose_of_few(int node, int ancestors) {
  double us[most_choices][1];
  int begun[most_choices];
  const int choices = sum_choices<1>(node, ancestors, us, begun);
  int best          = 0;
  for (int c = 1; c < choices; ++c)
    if (us[c][0] < us[best][0]) best = c;
  for (Branch& b : branches_) b.begins = best % (b.count + 1), best /= b.count + 1;
}

/// Returns the cost of the gathered node's branches and entry if its entries begin `ancestors` nodes above it. Sets
/// Branch::begins.
double PrefixPacking::best(int node, int ancestors) {
  const double weight = weight_[at(node) + ancestors];
  double extended     = 0;  // cost without an entry of the node
  int queries = 0, units = 0, total = 0;
  bool same = true;
  open_.clear();
  for (Branch& b : branches_) {
    b.begins = 0;
    if (b.child >= 0 && ancestors + 1 == max_nodes) {
      b.begins = 1;
      extended += b.begin_us, queries += b.queries;
      continue;
    }
    const double extend = extend_us(b, node, ancestors);
    extended += extend;
    b.saved = extend - b.begin_us;
    if (b.saved <= 0) continue;
    open_.push_back(&b);
    units += b.count, total += b.count * b.queries;
    same = same && b.queries == open_[0]->queries;
  }
  if (open_.empty()) return extended + cost_->entry(weight, queries);
  if (units <= 4 && units == static_cast<int>(open_.size())) return try_subsets(weight, extended, queries);
  if (!same && total <= most_knapsack_queries) return try_totals(weight, extended, queries);
  return try_in_order(weight, extended, queries);
}

/// Tries every subset of at most four branches.
double PrefixPacking::try_subsets(double weight, double extended, int queries) {
  double saved[16] = {}, best_us = extended + cost_->entry(weight, queries);
  int total[16] = {queries}, best_set = 0;
  for (int set = 1; set < 1 << open_.size(); ++set) {
    const Branch& b = *open_[std::countr_zero(static_cast<unsigned>(set))];
    saved[set]      = saved[set & (set - 1)] + b.saved;
    total[set]      = total[set & (set - 1)] + b.queries;
    const double us = extended - saved[set] + cost_->entry(weight, total[set]);
    if (us < best_us) best_us = us, best_set = set;
  }
  for (std::size_t i = 0; i < open_.size(); ++i) open_[i]->begins = best_set >> i & 1;
  return best_us;
}

/// A knapsack: for each total of query tokens, the set of branches that saves most.
double PrefixPacking::try_totals(double weight, double extended, int queries) {
  double saved[most_knapsack_queries + 1] = {};
  taken_.clear();  // for each leaf or child: the totals whose best set contains it
  int total = 0;
  for (const Branch* b : open_)
    for (int leaf = 0; leaf < b->count; ++leaf) {
      total += b->queries;
      std::uint64_t taken = 0;
      for (int t = total; t >= b->queries; --t)
        if (const double with = saved[t - b->queries] + b->saved / b->count; with > saved[t])
          saved[t] = with, taken |= std::uint64_t(1) << t;
      taken_.push_back(taken);
    }
  double best_us = extended + cost_->entry(weight, queries);
  int best_total = 0;
  for (int t = 1; t <= total; ++t) {
    const double us = extended - saved[t] + cost_->entry(weight, queries + t);
    if (us < best_us) best_us = us, best_total = t;
  }
  std::size_t unit = taken_.size();
  for (std::size_t i = open_.size(); i-- > 0;)
    for (int leaf = 0; leaf < open_[i]->count; ++leaf)
      if (taken_[--unit] >> best_total & 1) best_total -= open_[i]->queries, ++open_[i]->begins;
  return best_us;
}

/// Takes branches while that reduces the cost, those that save most for each query token first. A group may be divided
/// where its leaves fill tiles.
double PrefixPacking::try_in_order(double weight, double extended, int queries) {
  if (open_.size() > 1)
    std::sort(open_.begin(), open_.end(), [](const Branch* a, const Branch* b) {
      const double of_a = a->saved_per_query(), of_b = b->saved_per_query();
      return of_a != of_b ? of_a > of_b : a < b;
    });
  double best_us = extended + cost_->entry(weight, queries), gain = 0;
  std::size_t whole = 0;
  int part          = 0;  // leaves of open_[whole]
  const int full    = cost_->queries_per_entry();
  for (std::size_t i = 0; i < open_.size(); ++i) {
    const Branch& b = *open_[i];
    const int total = queries + b.count * b.queries;
    // Within a tile the cost is linear in the leaves, so only the ends of tiles can be better than all leaves or none.
    const bool several = b.count > 1 && total > cost_->steps().front();
    const int tiles    = several ? (total - 1) / full * full : 0;
    for (std::size_t step = 0; several && step < cost_->steps().size(); ++step) {
      const int limit = tiles + (cost_->steps()[step] == full ? 0 : cost_->steps()[step]);
      const int n     = limit > queries ? std::min((limit - queries) / b.queries, b.count - 1) : 0;
      if (n < 1) continue;
      const double us = extended - gain - b.saved / b.count * n + cost_->entry(weight, queries + n * b.queries);
      if (us < best_us) best_us = us, whole = i, part = n;
    }
    gain += b.saved, queries = total;
    const double us = extended - gain + cost_->entry(weight, queries);
    if (us < best_us) best_us = us, whole = i + 1, part = 0;
  }
  for (std::size_t i = 0; i < whole; ++i) open_[i]->begins = open_[i]->count;
  if (part > 0) open_[whole]->begins = part;
  return best_us;
}

/// Sets the predicted times of the forest. A small node costs what its subtree does.
template <bool chains>
void PrefixPacking::set_costs() {
  const PrefixForest& forest = *forest_;
  const CostModel& cost      = *cost_;
  const auto nodes           = forest.nodes();
  const int n                = static_cast<int>(nodes.size());
  double first_read = 0, plain = 0, packed = 0;  // tokens, us
  int chains_again = 0, most_again = 0;          // chains that read many tokens again: of all bundles, of the largest
  for (const PrefixForest::Group& g : forest.unshared()) {
    plain += plain_group_us(g, 0), packed += group_us(g, 0, false);
    first_read += static_cast<double>(g.own_tokens);
  }
  for (int v = 0; v < n; ++v) {
    const PrefixForest::Node& node = nodes[v];
    const std::int64_t tokens      = std::int64_t(node.pages()) * pages_->page_size;
    const double weight            = cost.weighted(tokens);
    path_[v]                       = node.parent < 0 ? weight : weight + path_[node.parent];
    first_read += cost.kept_in_cache(tokens);
    if (chains && chains_.is_small(v)) continue;
    double* weights = &weight_[at(v)];
    weights[0]      = weight;
    for (int up = 1; up < max_nodes; ++up)
      weights[up] = node.parent < 0 ? weight : weight + weight_[at(node.parent) + up - 1];
    depth_[v] = node.parent < 0 ? 0 : depth_[node.parent] + 1;
  }
  for (const PrefixForest::Group& g : forest.groups().subspan(forest.unshared().size())) {
    plain += plain_group_us(g, path_[g.node]), first_read += static_cast<double>(g.own_tokens);
    if (!chains || !(chains_.is_small(g.node) || chains_.is_in_bundle(g)))
      least_[g.node] = std::min(least_[g.node], g.num_queries);
  }
  for (int v = n - 1; v >= 0; --v) {
    const PrefixForest::Node& node = nodes[v];
    if (chains && chains_.is_small(v)) continue;
    if (chains) {
      bundle_ = chains_.bundle_of(v);
      if (bundle_.queries > 0) least_[v] = std::min(least_[v], bundle_.queries);
      if (bundle_.reads_again(node.pages() * pages_->page_size))
        chains_again += bundle_.num_chains, most_again = std::max(most_again, bundle_.num_chains);
    }
    if (node.parent >= 0) least_[node.parent] = std::min(least_[node.parent], node.num_queries);
    in_tile_[v]            = cost.same_tile(least_[v], node.num_queries);
    us_[at(v) + max_nodes] = std::numeric_limits<double>::infinity();
    if (in_tile_[v]) {
      set_costs_in_tile<chains>(v);
      continue;
    }
    gather<chains>(v);
    if (has_few_choices()) {
      set_costs_of_few(v);
      continue;
    }
    for (int up = 0; up < max_nodes && up <= depth_[v]; ++up) us_[at(v) + up] = best(v, up);
  }
  for (int v = 0; v < forest.num_roots(); ++v)
    packed += chains && chains_.is_small(v) ? chains_.root_us(v) : us_[at(v)];
  whole_bundles_ = 2 * most_again <= chains_again;
  plain_us_      = plain + first_read * cost.first_read();
  packed_us_     = packed + first_read * cost.first_read() + cost.list();
}

void PrefixPacking::choose(const BatchPages& pages, const PrefixForest& forest, const CostModel& cost) {
  pages_ = &pages, forest_ = &forest, cost_ = &cost;
  const auto nodes = forest.nodes();
  const auto slots = at(static_cast<int>(nodes.size()));
  weight_.resize(slots), us_.resize(slots), path_.resize(nodes.size()), depth_.resize(nodes.size());
  least_.assign(nodes.size(), INT32_MAX), in_tile_.resize(nodes.size());
  chains_.find(pages, forest, cost);
  if (chains_.any())
    set_costs<true>();
  else
    set_costs<false>();
}

/// Writes the entries of a node and of its leaves, and sets the positions of its children. Branches that begin new
/// entries come first, so that the query tokens of the node's entry are contiguous.
inline void PrefixPacking::visit(int node, ListWriter& writer) {
  const Visit where           = visits_[node];
  const PrefixForest::Node& v = forest_->nodes()[node];
  if (chains_.any()) {
    bundle_ = chains_.bundle_of(node);
    gather<true>(node);
  } else {
    gather<false>(node);
  }
  if (in_tile_[node])
    choose_in_tile(node, where.ancestors);
  else if (has_few_choices())
    choose_of_few(node, where.ancestors);
  else
    best(node, where.ancestors);
  const int first = where.first, last = v.last_page * pages_->page_size;
  int query = where.query_begin;
  for (const Branch& b : branches_) {
    if (b.begins == 0) continue;
    if (b.child == bundle) {
      writer.add_bundle(node, bundle_, last, where.state + 1, query);
    } else if (b.child < 0) {
      writer.add_leaves(forest_->groups()[~b.child], 0, b.begins, last, where.state + 1, query);
    } else {
      visits_[b.child] = {0, query, where.state + 1, last};
      query += b.queries;
    }
  }
  writer.add_entries(first, last, where.query_begin, query - where.query_begin, where.state);
  for (const Branch& b : branches_) {
    if (b.child == bundle) {
      if (b.begins == 0) writer.add_bundle(node, bundle_, first, where.state, query);
    } else if (b.child < 0) {
      writer.add_leaves(forest_->groups()[~b.child], b.begins, b.count, first, where.state, query);
    } else if (b.begins == 0) {
      visits_[b.child] = {where.ancestors + 1, query, where.state, first};
      query += b.queries;
    }
  }
}

void PrefixPacking::write(EntryList& list) {
  ListWriter writer(*pages_, *forest_, *cost_, chains_, whole_bundles_, list);
  const auto nodes = forest_->nodes();
  visits_.resize(nodes.size());
  int query = 0;
  for (int v = 0; v < forest_->num_roots(); ++v) visits_[v] = {0, query, 0, 0}, query += nodes[v].num_queries;
  for (int v = 0; v < static_cast<int>(nodes.size()); ++v) {
    if (!chains_.any() || !chains_.is_small(v))
      visit(v, writer);
    else if (v < forest_->num_roots())
      writer.add_small_root(v, visits_[v].query_begin);
  }
  for (const PrefixForest::Group& g : forest_->unshared()) writer.add_leaves(g, 0, g.count, 0, 0, query);
  writer.finish();
}

}  // namespace pagoda::detail
