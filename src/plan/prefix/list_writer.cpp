// SPDX-License-Identifier: Apache-2.0
#include "src/plan/prefix/list_writer.hpp"

#include <algorithm>

namespace pagoda::detail {

namespace {

/// Entry::state of a sequence's last entry, or of its chain, behind `states` partial states: without any, it writes the
/// output.
int state_or_output(int states) { return states > 0 ? states : -1; }
/// Partial states of its query tokens.
int num_states_of(int states) { return states > 0 ? states + 1 : 0; }

}  // namespace

ListWriter::ListWriter(const BatchPages& pages, const PrefixForest& forest, const CostModel& cost,
                       const PrefixChains& chains, bool whole_bundles, EntryList& list)
    : pages_(pages), forest_(forest), cost_(cost), chains_(chains), list_(list), whole_bundles_(whole_bundles) {
  list.clear();
  list.queries.resize(static_cast<std::size_t>(pages.query_tokens()));
  list.state_begin.assign(static_cast<std::size_t>(pages.query_tokens()) + 1, 0);
}

void ListWriter::add_entries(int first, int last, int query_begin, int queries, int state) {
  const int full = cost_.queries_per_entry();
  for (int done = 0; done < queries; done += full)
    list_.entries.push_back({0, first, last, query_begin + done, std::min(full, queries - done), state});
  list_.max_queries = std::max(list_.max_queries, std::min(full, queries));
}

void ListWriter::add_leaves(const PrefixForest::Group& g, int begin, int end, int first, int state, int& query) {
  const int num_states = num_states_of(state);
  for (int leaf = g.first_leaf + begin; leaf < g.first_leaf + end; ++leaf) {
    const int b = forest_.leaves()[leaf], sequence = pages_.sequence(b), token = pages_.query_begin(b);
    add_entries(first, -1, query, g.num_queries, state_or_output(state));
    for (int i = 0; i < g.num_queries; ++i) {
      list_.queries[query++]           = {token + i, sequence, g.num_queries - i};
      list_.state_begin[token + i + 1] = num_states;
    }
  }
}

/// Adds the entry and the query token of a leaf in a chain. leaf: in PrefixForest::leaves().
inline void ListWriter::add_chain_leaf(int leaf, int first, int state, int& query) {
  const int b = forest_.leaves()[leaf], token = pages_.query_begin(b);
  list_.entries.push_back({0, first, -1, query, 1, state_or_output(state)});
  list_.queries[query++]       = {token, pages_.sequence(b), 1};
  list_.state_begin[token + 1] = num_states_of(state);
}

/// Adds the entries of a small node and of all below it, each before those of its leaves and children, so that the
/// query tokens of each are contiguous. Each level has fewer query tokens than the one above it, so few calls nest.
void ListWriter::add_subtree(int node, int first, int state, int& query) {
  const PrefixForest::Node& v = forest_.nodes()[node];
  const int last              = v.last_page * pages_.page_size;
  list_.entries.push_back({0, first, last, query, v.num_queries, state_or_output(state)});
  for (const PrefixForest::Group& g : forest_.groups().subspan(v.first_group, v.num_groups))
    for (int leaf = g.first_leaf; leaf < g.first_leaf + g.count; ++leaf) add_chain_leaf(leaf, last, state, query);
  for (int c = v.first_child; c < v.first_child + v.num_children; ++c) add_subtree(c, last, state, query);
}

/// Turns the order of a chain's entries, which are the list's from `begin` on, so that what all of its query tokens
/// share is read last.
inline void ListWriter::read_leaves_first(std::size_t begin) {
  const Entry shared = list_.entries[begin];
  if (shared.first == shared.last) return;
  list_.entries.push_back(shared);
  list_.entries[begin].first = list_.entries[begin].last = 0;
  std::reverse(list_.entries.begin() + static_cast<std::ptrdiff_t>(begin) + 1, list_.entries.end() - 1);
}

/// Adds a chain behind token `end`. Its first entry has no tokens if first == end and the chain has no node that all of
/// its query tokens share.
void ListWriter::add_chain(const PrefixChains::Chain& chain, int first, int end, int state, bool leaves_first,
                           int& query) {
  const auto begin = list_.entries.size();
  if (!chain.is_node()) {
    const bool reads = first < end;
    list_.entries.push_back({0, reads ? first : 0, reads ? end : 0, query, chain.queries, state_or_output(state)});
  }
  for (int c = chain.first_child; c < chain.last_child; ++c)
    if (chains_.is_small(c)) add_subtree(c, chain.is_node() ? first : end, state, query);
  for (int leaf = chain.first_leaf; leaf < chain.first_leaf + chain.num_leaves; ++leaf)
    add_chain_leaf(leaf, end, state, query);
  if (leaves_first) read_leaves_first(begin);
  const int further          = static_cast<int>(list_.entries.size() - begin) - 1;
  list_.entries[begin].chain = further;
  for (int k = 1; k <= further; ++k) list_.entries[begin + k].chain = -k;
  list_.max_queries = std::max(list_.max_queries, chain.queries);
}

void ListWriter::add_bundle(int node, const PrefixChains::Bundle& bundle, int first, int state, int& query) {
  const int end         = forest_.nodes()[node].last_page * pages_.page_size;
  const bool two_orders = cost_.memory_limits_chains() && bundle.reads_again(end - first);
  bool leaves_first     = two_orders && whole_bundles_ && chains_leaves_first_ < chains_nodes_first_;
  if (two_orders) (leaves_first ? chains_leaves_first_ : chains_nodes_first_) += bundle.num_chains;
  chains_.for_each_chain(node, [&](const PrefixChains::Chain& chain) {
    if (chain.is_leaf()) {
      add_chain_leaf(chain.first_leaf, first, state, query);
      list_.max_queries = std::max(list_.max_queries, 1);
    } else {
      add_chain(chain, first, end, state, leaves_first, query);
    }
    if (two_orders && !whole_bundles_) leaves_first = !leaves_first;
  });
}

void ListWriter::add_small_root(int node, int query) {
  add_chain({node, node + 1, 1, 0, 0, forest_.nodes()[node].num_queries, 0, 0}, 0, 0, 0, false, query);
}

void ListWriter::finish() {
  for (Entry& e : list_.entries) e.sequence = list_.queries[e.query_begin].sequence;
  for (std::size_t t = 1; t < list_.state_begin.size(); ++t) list_.state_begin[t] += list_.state_begin[t - 1];
}

}  // namespace pagoda::detail
