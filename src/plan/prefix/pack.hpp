// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/entry.hpp>

#include "src/plan/prefix/chains.hpp"
#include "src/plan/prefix/cost.hpp"
#include "src/plan/prefix/forest.hpp"
#include "src/plan/prefix/list_writer.hpp"

#include <cstdint>
#include <vector>

namespace pagoda::detail {

/// Chooses the entries of a forest.
///
/// Each sequence has its own entry at the end of its path from the root, and a path is divided into entries at nodes.
/// At each node, some of the branches begin new entries after it, and share the node's entry. The other branches
/// extend: their entries read the node's tokens themselves, which saves a partial state of each query token. If every
/// branch extends to the root, the decode is a plain one.
///
/// If kernels carry out chains (PrefixChains), a small node and all below it are always in one chain, and the bundle of
/// another node is one of its branches. The chains of a bundle all begin behind the node, or all extend: then their
/// first entries read the node's tokens. A small root is a chain that writes the output.
///
/// A dynamic program from the leaves to the roots finds the cheapest choice. Its state is a node and the number of
/// ancestors that an entry through it includes, fewer than max_nodes, so time is linear in the nodes times that bound.
/// At a node it chooses a subset of the branches, because the node's entry costs whole tiles. The subset is the best
/// one if the branches have the same number of query tokens, if at most four of them can begin new entries, if there
/// are at most most_choices subsets (the leaves of a group count as equal), or if they have at most
/// most_knapsack_queries. Otherwise branches are taken in the order of what they save for each query token.
class PrefixPacking {
 public:
  static constexpr int max_nodes = 8;  ///< most nodes of a path in one entry

  /// Computes costs. The three objects must outlive the packing.
  void choose(const BatchPages& pages, const PrefixForest& forest, const CostModel& cost);
  double plain_us() const { return plain_us_; }    ///< predicted time of the batch without a list
  double packed_us() const { return packed_us_; }  ///< predicted time with the list that write() makes
  /// Writes the list. Its query tokens are in the order of the tree.
  void write(EntryList& list);

 private:
  static constexpr int most_knapsack_queries = 63;         ///< bits of a word, less one
  static constexpr int most_choices          = 16;         ///< of a node for which all are tried
  static constexpr int bundle                = INT32_MIN;  ///< Branch::child of the node's bundle
  struct Branch {        ///< branch of a node: a child, a group of leaves, or the bundle
    int child;           ///< negative: ~group, or `bundle`
    int queries, count;  ///< queries: of the child, of one leaf or of the bundle; count: leaves, otherwise 1
    double begin_us;     ///< cost if it begins new entries
    /// Of a group or the bundle: cost of a token in its entries, and cost of its partial states.
    double slope, states;
    double saved;  ///< saved by new entries, without the cost of the node's entry
    int begins;    ///< leaves that begin new entries; 1 for a child or the bundle
    double saved_per_query() const { return saved / (queries * count); }
  };
  struct Visit {  ///< state of a node while the list is written
    int ancestors, query_begin, state;
    int first;  ///< first token of its entry
  };
  static std::size_t at(int node) { return static_cast<std::size_t>(node) * (max_nodes + 1); }
  double group_us(const PrefixForest::Group& g, double weight, bool states) const;
  double plain_group_us(const PrefixForest::Group& g, double weight) const;
  template <bool chains>
  void gather(int node);
  template <bool chains>
  void set_costs_in_tile(int node);
  template <bool chains>
  void set_costs();
  double extend_us(const Branch& b, int node, int ancestors) const;
  void choose_in_tile(int node, int ancestors);
  bool has_few_choices() const;
  template <int columns>
  int sum_choices(int node, int ancestors, double (*us)[columns], int* begun) const;
  void set_costs_of_few(int node);
  void choose_of_few(int node, int ancestors);
  double best(int node, int ancestors);
  double try_subsets(double weight, double extended, int queries);
  double try_totals(double weight, double extended, int queries);
  double try_in_order(double weight, double extended, int queries);
  void visit(int node, ListWriter& writer);

  const BatchPages* pages_    = nullptr;
  const PrefixForest* forest_ = nullptr;
  const CostModel* cost_      = nullptr;
  /// For a node and the number of ancestors that its entry includes, at(node) + ancestors: predicted time, and weighted
  /// tokens. The time for max_nodes ancestors is infinite, and weights beyond the root are those from the root.
  std::vector<double> us_, weight_;
  std::vector<double> path_;   ///< weighted tokens from the root
  std::vector<int> depth_;     ///< number of ancestors
  std::vector<int> least_;     ///< fewest query tokens of a branch
  std::vector<char> in_tile_;  ///< whether entries of the node cost the same for every subset of its branches
  PrefixChains chains_;
  PrefixChains::Bundle bundle_ = {};  ///< of the node whose branches are gathered
  /// Whether the chains of a bundle all have the same order (ListWriter): not where one bundle has most chains.
  bool whole_bundles_ = false;
  std::vector<Branch> branches_;
  std::vector<Branch*> open_;  ///< branches that a new entry makes cheaper
  std::vector<std::uint64_t> taken_;
  std::vector<Visit> visits_;
  double plain_us_ = 0, packed_us_ = 0;
};

}  // namespace pagoda::detail
