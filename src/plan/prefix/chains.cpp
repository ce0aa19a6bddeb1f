// SPDX-License-Identifier: Apache-2.0
#include "src/plan/prefix/chains.hpp"

#include <cstdint>

namespace pagoda::detail {

void PrefixChains::find(const BatchPages& pages, const PrefixForest& forest, const CostModel& cost) {
  pages_ = &pages, forest_ = &forest, cost_ = &cost;
  most_ = cost.queries_per_chain();
  if (!any()) return;
  most_own_tokens_ = cost.chain_tokens(pages.query_tokens());
  const auto nodes = forest.nodes();
  small_.resize(nodes.size()), subtree_.resize(nodes.size());
  for (std::size_t v = 0; v < nodes.size(); ++v) {
    small_[v] = nodes[v].num_queries <= most_;
    if (small_[v]) subtree_[v] = {cost.weighted(std::int64_t(nodes[v].pages()) * pages.page_size), 1};
  }
  for (const PrefixForest::Group& g : forest.groups().subspan(forest.unshared().size())) {
    if (!is_in_bundle(g))
      small_[g.node] = false;
    else if (small_[g.node])
      subtree_[g.node].tokens += static_cast<double>(g.own_tokens), subtree_[g.node].entries += g.count;
  }
  for (std::size_t v = nodes.size(); v-- > 0;) {  // all descendants of a small node are small
    const int parent = nodes[v].parent;
    if (parent < 0 || !small_[parent]) continue;
    if (!small_[v])
      small_[parent] = false;
    else
      subtree_[parent].tokens += subtree_[v].tokens, subtree_[parent].entries += subtree_[v].entries;
  }
}

PrefixChains::Bundle PrefixChains::bundle_of(int node) const {
  const PrefixForest::Node& v = forest_->nodes()[node];
  Bundle bundle               = {};
  double own_tokens           = 0;  // of leaves in chains
  for (const PrefixForest::Group& g : forest_->groups().subspan(v.first_group, v.num_groups))
    if (is_in_bundle(g)) own_tokens = static_cast<double>(g.own_tokens);
  bundle.tokens = own_tokens;
  for_each_chain(node, [&](const Chain& c) {
    bundle.queries += c.queries, ++bundle.num_chains, bundle.tokens += c.tokens;
    if (c.is_leaf()) {
      const int tokens = pages_->seq_len(forest_->leaves()[c.first_leaf]) - v.last_page * pages_->page_size;
      own_tokens -= tokens;
      bundle.us += tokens * cost_->pass(1) + cost_->item(1), bundle.slope += cost_->pass(1);
    } else {
      bundle.us += chain_us(c.tokens, c.is_node() ? c.entries : c.entries + 1), bundle.slope += cost_->chain_pass();
    }
  });
  bundle.states = bundle.queries * cost_->state();
  bundle.us += own_tokens * cost_->chain_pass() + bundle.states;
  return bundle;
}

}  // namespace pagoda::detail
