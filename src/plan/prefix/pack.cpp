// SPDX-License-Identifier: Apache-2.0
#include "src/plan/prefix/pack.hpp"

#include <algorithm>
#include <limits>

namespace pagoda::detail {

/// Leaves that read `weight` tokens besides their own, with or without partial states.
double PrefixPacking::group_us(const PrefixForest::Group& g, double weight, bool states) const {
  const double tokens = g.count * weight + static_cast<double>(g.own_tokens);
  return tokens * cost_->pass(g.num_queries) +
         g.count * (cost_->item(g.num_queries) + (states ? g.num_queries * cost_->state() : 0));
}

/// A shared entry, whose query tokens always have partial states.
double PrefixPacking::entry_us(double weight, int queries) const {
  if (queries == 0) return 0;
  return weight * cost_->pass(queries) + cost_->item(queries) + queries * cost_->state();
}

/// The best choice at a node, for entries that begin `ancestors` nodes above it. Leaves the node's branches in branches_,
/// those that gain most for each query token first.
PrefixPacking::Choice PrefixPacking::best(int node, int ancestors) {
  const PrefixForest::Node& v = forest_->nodes()[node];
  const bool at_root          = ancestors == depth_[node];
  double weight               = 0;
  for (int up = 0, at = node; up <= ancestors; ++up, at = forest_->nodes()[at].parent) weight += weight_[at];

  double extended = 0, gain = 0;  // all branches extend; what the branches so far gain
  int queries = 0;
  branches_.clear();
  const auto add = [&](double extend, double begin, const Branch& branch) {
    if (extend == std::numeric_limits<double>::infinity()) {  // must begin here
      extended += begin, queries += branch.queries;
      branches_.insert(branches_.begin(), branch);
      return;
    }
    extended += extend;
    branches_.push_back(branch);
  };
  for (int c = v.first_child; c < v.first_child + v.num_children; ++c) {
    const double extend = ancestors + 1 < max_nodes ? us(c, ancestors + 1) : std::numeric_limits<double>::infinity();
    add(extend, us(c, 0), {extend - us(c, 0), forest_->nodes()[c].num_queries, 1, c});
  }
  for (int g = v.first_group; g < v.first_group + v.num_groups; ++g) {
    const PrefixForest::Group& group = forest_->groups()[g];
    const double extend = group_us(group, weight, !at_root), begin = group_us(group, 0, true);
    add(extend, begin, {extend - begin, group.num_queries, group.count, ~g});
  }
  // Infinite savings come first.
  std::sort(branches_.begin(), branches_.end(), [](const Branch& a, const Branch& b) {
    return a.saved * b.queries * b.count > b.saved * a.queries * a.count;
  });

  int whole = 0;
  while (whole < static_cast<int>(branches_.size()) &&
         branches_[whole].saved == std::numeric_limits<double>::infinity())
    ++whole;
  Choice choice{extended + entry_us(weight, queries), queries, whole, 0};
  const auto consider = [&](double saved, int total, int index, int part) {
    const double us = extended - saved + entry_us(weight, total);
    if (us < choice.us) choice = {us, total, index, part};
  };
  for (int i = whole; i < static_cast<int>(branches_.size()) && branches_[i].saved > 0; ++i) {
    const Branch& b = branches_[i];
    // Some of the leaves: as many as fill whole tiles.
    const int total = queries + b.count * b.queries, full = cost_->queries_per_entry();
    for (int step = 0; b.count > 1 && step < static_cast<int>(cost_->steps().size()); ++step) {
      const int limit = (total - 1) / full * full + (cost_->steps()[step] == full ? 0 : cost_->steps()[step]);
      const int part  = (limit - queries) / b.queries;
      if (limit > queries && part > 0 && part < b.count)
        consider(gain + b.saved / b.count * part, queries + part * b.queries, i, part);
    }
    gain += b.saved, queries = total;
    consider(gain, queries, i + 1, 0);
  }
  return choice;
}

void PrefixPacking::choose(const BatchPages& pages, const PrefixForest& forest, const CostModel& cost) {
  pages_ = &pages, forest_ = &forest, cost_ = &cost;
  const auto nodes = forest.nodes();
  const int n      = static_cast<int>(nodes.size());
  depth_.resize(nodes.size()), weight_.resize(nodes.size()), us_.resize(nodes.size() * max_nodes);
  double unique = 0, plain = 0;
  for (const PrefixForest::Group& g : forest.unshared()) plain += group_us(g, 0, false), unique += double(g.own_tokens);
  double packed = plain;
  path_.resize(nodes.size());
  for (int v = 0; v < n; ++v) {
    const PrefixForest::Node& node = nodes[v];
    const std::int64_t tokens      = std::int64_t(node.pages()) * pages.page_size;
    depth_[v]                      = node.parent < 0 ? 0 : depth_[node.parent] + 1;
    weight_[v]                     = cost.weighted(tokens);
    path_[v]                        = weight_[v] + (node.parent < 0 ? 0 : path_[node.parent]);
    unique += static_cast<double>(tokens);
    for (const PrefixForest::Group& g : forest.groups().subspan(node.first_group, node.num_groups))
      plain += group_us(g, path_[v], false), unique += static_cast<double>(g.own_tokens);
  }
  for (int v = n - 1; v >= 0; --v)
    for (int up = 0; up < std::min(depth_[v] + 1, max_nodes); ++up) us(v, up) = best(v, up).us;
  for (int v = 0; v < forest.num_roots(); ++v) packed += us(v, 0);
  plain_us_  = plain + unique * cost.first_read();
  packed_us_ = packed + unique * cost.first_read() + cost.list();
}

/// Entries of at most queries_per_entry() query tokens each. Their sequences are named when all query tokens are known.
void PrefixPacking::add_entries(int first, int last, int query_begin, int queries, int state,
                                EntryList& list) const {
  const int full = cost_->queries_per_entry();
  for (int done = 0; done < queries; done += full)
    list.entries.push_back({0, first, last, query_begin + done, std::min(full, queries - done), state});
  list.max_queries = std::max(list.max_queries, std::min(full, queries));
}

/// The entries and query tokens of leaves begin to end - 1 of a group. state: of these entries.
void PrefixPacking::add_leaves(const PrefixForest::Group& g, int begin, int end, int first, int state, int& query,
                               EntryList& list) const {
  for (int leaf = g.first_leaf + begin; leaf < g.first_leaf + end; ++leaf) {
    const int b = forest_->leaves()[leaf], sequence = pages_->sequence(b), token = pages_->query_begin(b);
    add_entries(first, -1, query, g.num_queries, state > 0 ? state : -1, list);
    for (int i = 0; i < g.num_queries; ++i) {
      list.queries[query++]          = {token + i, sequence, g.num_queries - i};
      list.state_begin[token + i + 1] = state > 0 ? state + 1 : 0;
    }
  }
}

/// Writes the entries of a node and of its leaves, and tells its children where they stand. Branches that begin new
/// entries stand first, so that the query tokens of the node's entry are a run.
void PrefixPacking::visit(int node, EntryList& list) {
  const Visit at              = visits_[node];
  const Choice choice         = best(node, at.ancestors);
  const PrefixForest::Node& v = forest_->nodes()[node];
  int top                     = node;
  for (int up = 0; up < at.ancestors; ++up) top = forest_->nodes()[top].parent;
  const int first = forest_->nodes()[top].first_page * pages_->page_size, last = v.last_page * pages_->page_size;
  if (choice.queries > 0)
    add_entries(first, last, at.query_begin, choice.queries, at.state, list);
  int query = at.query_begin;
  for (int i = 0; i < static_cast<int>(branches_.size()); ++i) {
    const Branch& b   = branches_[i];
    const int begins  = i < choice.whole ? b.count : i == choice.whole ? choice.part : 0;
    if (b.child >= 0) {
      visits_[b.child] = begins > 0 ? Visit{0, query, at.state + 1} : Visit{at.ancestors + 1, query, at.state};
      query += b.queries;
    } else {
      const PrefixForest::Group& g = forest_->groups()[~b.child];
      add_leaves(g, 0, begins, last, at.state + 1, query, list);
      add_leaves(g, begins, b.count, first, at.state, query, list);
    }
  }
}

void PrefixPacking::write(EntryList& list) {
  list.clear();
  list.queries.resize(static_cast<std::size_t>(pages_->query_tokens()));
  list.state_begin.assign(static_cast<std::size_t>(pages_->query_tokens()) + 1, 0);
  const auto nodes = forest_->nodes();
  visits_.resize(nodes.size());
  int query = 0;
  for (int v = 0; v < forest_->num_roots(); ++v) visits_[v] = {0, query, 0}, query += nodes[v].num_queries;
  for (int v = 0; v < static_cast<int>(nodes.size()); ++v) visit(v, list);
  for (const PrefixForest::Group& g : forest_->unshared()) add_leaves(g, 0, g.count, 0, 0, query, list);
  for (Entry& e : list.entries) e.sequence = list.queries[e.query_begin].sequence;
  for (std::size_t t = 1; t < list.state_begin.size(); ++t) list.state_begin[t] += list.state_begin[t - 1];
}

}  // namespace pagoda::detail
