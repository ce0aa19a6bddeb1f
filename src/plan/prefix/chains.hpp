// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/plan/prefix/cost.hpp"
#include "src/plan/prefix/forest.hpp"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace pagoda::detail {

/// What of a forest is put into chains (Entry::chain), if kernels carry them out (CostModel::queries_per_chain() > 0).
///
/// A node is small if its query tokens fit a chain and each of its sequences has one query token and few tokens of its
/// own (CostModel::chain_tokens). It and all below it are in one chain: each page is read once, and each query token
/// has one partial state. Nothing below it is planned.
///
/// The small children of another node, and its leaves of such sequences, are its bundle. They are put into chains in
/// order, children first, as many into each as fit.
class PrefixChains {
 public:
  struct Chain {                                ///< part of a node's bundle
    int first_child, last_child, num_children;  ///< its small children are those in first_child .. last_child - 1
    int first_leaf, num_leaves;                 ///< in PrefixForest::leaves()
    int queries, entries;                       ///< of both; entries: without a first entry for all of them
    double tokens;                              ///< weighted tokens of the children's subtrees
    /// A leaf alone is an entry without a chain.
    bool is_leaf() const { return num_children == 0 && num_leaves == 1; }
    /// The entry of a node alone has all query tokens of the chain.
    bool is_node() const { return num_children == 1 && num_leaves == 0; }
  };
  struct Bundle {
    int queries;    ///< 0: the node has no bundle
    double us;      ///< cost if its chains begin behind the node, with `states`
    double slope;   ///< cost of a token that all of its chains read
    double states;  ///< cost of its partial states
    int num_chains;
    double tokens;  ///< weighted; each is read by one chain
    /// Whether many tokens are read again if all chains also read the same `range` tokens: at least a fifth of those
    /// that are read once.
    bool reads_again(int range) const { return 5.0 * (num_chains - 1) * range >= range + tokens; }
  };

  /// Finds the small nodes. The three objects must outlive this one.
  void find(const BatchPages& pages, const PrefixForest& forest, const CostModel& cost);
  /// Whether there may be chains. Without, no other function may be called.
  bool any() const { return most_ > 0; }
  bool is_small(int node) const { return small_[node] != 0; }
  /// Whether the leaves of a group are in the bundle of their node, if that is not small.
  bool is_in_bundle(const PrefixForest::Group& g) const {
    return g.num_queries == 1 && g.own_tokens <= g.count * most_own_tokens_;
  }
  /// Cost of a small root and all below it.
  double root_us(int node) const { return chain_us(subtree_[node].tokens, subtree_[node].entries); }
  /// The bundle of a node that is not small.
  Bundle bundle_of(int node) const;
  /// Calls `call` for each chain of its bundle.
  template <class Call>
  void for_each_chain(int node, const Call& call) const {
    const PrefixForest::Node& v = forest_->nodes()[node];
    Chain chain                 = {};
    for (int c = v.first_child; c < v.first_child + v.num_children; ++c) {
      if (!is_small(c)) continue;
      const int queries = forest_->nodes()[c].num_queries;
      if (chain.queries + queries > most_) call(chain), chain = {};
      if (chain.num_children == 0) chain.first_child = c;
      chain.last_child = c + 1, ++chain.num_children;
      chain.queries += queries, chain.entries += subtree_[c].entries, chain.tokens += subtree_[c].tokens;
    }
    for (const PrefixForest::Group& g : forest_->groups().subspan(v.first_group, v.num_groups)) {
      if (!is_in_bundle(g)) continue;  // one group at most
      for (int leaf = g.first_leaf, end = leaf + g.count; leaf < end; leaf += chain.num_leaves) {
        if (chain.queries == most_) call(chain), chain = {};
        chain.first_leaf = leaf, chain.num_leaves = std::min(most_ - chain.queries, end - leaf);
        chain.queries += chain.num_leaves, chain.entries += chain.num_leaves;
      }
    }
    if (chain.queries > 0) call(chain);
  }

 private:
  struct Subtree {  ///< a small node and all below it
    double tokens;  ///< weighted; each is read once
    int entries;
  };
  double chain_us(double tokens, int entries) const {
    return tokens * cost_->chain_pass() + cost_->chain_item() + (entries - 1) * cost_->chain_entry();
  }

  const BatchPages* pages_      = nullptr;
  const PrefixForest* forest_   = nullptr;
  const CostModel* cost_        = nullptr;
  int most_                     = 0;  ///< query tokens of a chain
  std::int64_t most_own_tokens_ = 0;  ///< CostModel::chain_tokens of the batch
  std::vector<char> small_;
  std::vector<Subtree> subtree_;  ///< of small nodes
};

}  // namespace pagoda::detail
