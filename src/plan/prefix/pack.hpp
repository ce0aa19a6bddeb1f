// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/plan/prefix/cost.hpp"
#include "src/plan/prefix/entry.hpp"
#include "src/plan/prefix/forest.hpp"

#include <vector>

namespace pagoda::detail {

/// Chooses the entries of a forest.
///
/// Each sequence has an entry of its own at the end of its path from the root, and a path is divided into entries at
/// nodes. At each node some of the members' branches begin new entries behind it; these share the node's entry. The other
/// branches extend: their entries read the node's tokens themselves, which saves a partial state of each query token.
/// If every branch extends as far as the root, the decode is a plain one.
///
/// A dynamic program from the leaves to the roots finds the cheapest choice. Its state is a node and the number of
/// ancestors that an entry through it includes, fewer than max_nodes: time is linear in the nodes times that bound, and
/// in the logarithm of the children, which are sorted by what sharing saves for each query token.
class PrefixPacking {
 public:
  static constexpr int max_nodes = 8;  ///< on the path, in one entry

  /// Works out costs. The three objects must outlive the packing.
  void choose(const BatchPages& pages, const PrefixForest& forest, const CostModel& cost);
  double plain_us() const { return plain_us_; }    ///< predicted, of the batch without a list
  double packed_us() const { return packed_us_; }  ///< predicted, of the list that write() makes
  /// Writes the list. Its query tokens stand in the order of the tree.
  void write(EntryList& list);

 private:
  struct Branch {  ///< of a node: a child, or a group of leaves
    double saved;  ///< by a new entry, without the cost of the node's own
    int queries;   ///< of the child, or of one leaf
    int count;     ///< leaves; 1 for a child
    int child;     ///< negative: ~group
  };
  /// The branches that begin new entries: the first `whole` in branches_, and `part` leaves of the next.
  struct Choice {
    double us;
    int queries, whole, part;
  };
  struct Visit {  ///< of a node, while the list is written
    int ancestors, query_begin, state;
  };
  double& us(int node, int ancestors) { return us_[static_cast<std::size_t>(node) * max_nodes + ancestors]; }
  double group_us(const PrefixForest::Group& g, double weight, bool states) const;
  double entry_us(double weight, int queries) const;
  Choice best(int node, int ancestors);
  void visit(int node, EntryList& list);
  void add_leaves(const PrefixForest::Group& g, int begin, int end, int first, int state, int& query, EntryList& list) const;
  void add_entries(int first, int last, int query_begin, int queries, int state, EntryList& list) const;

  const BatchPages* pages_    = nullptr;
  const PrefixForest* forest_ = nullptr;
  const CostModel* cost_      = nullptr;
  std::vector<int> depth_;
  std::vector<double> weight_, path_, us_;  ///< path_: weight from the root
  std::vector<Branch> branches_;
  std::vector<Visit> visits_;
  double plain_us_ = 0, packed_us_ = 0;
};

}  // namespace pagoda::detail
