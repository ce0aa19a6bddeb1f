// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/entry.hpp>

#include "src/plan/prefix/chains.hpp"
#include "src/plan/prefix/cost.hpp"
#include "src/plan/prefix/forest.hpp"

#include <cstddef>

namespace pagoda::detail {

/// Writes the entries that a packing has chosen, and their query tokens. `query` is the place of the next query token
/// in EntryList::queries; the functions advance it. `first` is the first token of an entry. `state` is the number of
/// partial states that entries before it write; sequences without any write the output.
class ListWriter {
 public:
  /// Empties the list. All objects must outlive the writer. whole_bundles: which chains read their leaves first, see
  /// add_bundle.
  ListWriter(const BatchPages& pages, const PrefixForest& forest, const CostModel& cost, const PrefixChains& chains,
             bool whole_bundles, EntryList& list);
  /// Adds entries of at most queries_per_entry() query tokens each. state: Entry::state. Their sequences are set by
  /// finish().
  void add_entries(int first, int last, int query_begin, int queries, int state);
  /// Adds the entries and query tokens of leaves begin to end - 1 of a group.
  void add_leaves(const PrefixForest::Group& g, int begin, int end, int first, int state, int& query);
  /// Adds the chains of a node's bundle. Where they read many tokens again (Bundle::reads_again) and memory limits
  /// them, half of the chains read their leaves first. Chains run at the same time. Those tokens come from the
  /// second-level cache, and leaves from memory: in two orders, neither of them is idle. With whole_bundles, all chains
  /// of a bundle have the same order, so that those tokens are not read again after they have left the cache. Otherwise
  /// every second chain of each bundle reads its leaves first.
  void add_bundle(int node, const PrefixChains::Bundle& bundle, int first, int state, int& query);
  /// Adds the chain of a small root.
  void add_small_root(int node, int query);
  /// Completes the list when it has all query tokens.
  void finish();

 private:
  void add_chain(const PrefixChains::Chain& chain, int first, int end, int state, bool leaves_first, int& query);
  void read_leaves_first(std::size_t begin);
  void add_subtree(int node, int first, int state, int& query);
  void add_chain_leaf(int leaf, int first, int state, int& query);

  const BatchPages& pages_;
  const PrefixForest& forest_;
  const CostModel& cost_;
  const PrefixChains& chains_;
  EntryList& list_;
  bool whole_bundles_;
  int chains_leaves_first_ = 0, chains_nodes_first_ = 0;  ///< of whole bundles that read many tokens again
};

}  // namespace pagoda::detail
