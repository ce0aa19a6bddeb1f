// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/plan/prefix/batch_pages.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace pagoda::detail {

/// The radix forest of a batch's page tables. Each node is a run of pages that several sequences share, and its
/// children continue it. Two sequences share a page if it has the same id in both rows and they share all pages before
/// it.
///
/// Building takes time linear in the number of shared pages plus the number of sequences: rows are compared page by
/// page only with a row that shares their pages, and a hash table finds the next child. A sequence that shares nothing
/// costs one look-up of its first page id. Memory is reused by the next build.
class PrefixForest {
 public:
  struct Node {
    int first_page, last_page;      ///< pages of the rows of its members
    int parent;                     ///< negative: a root
    int first_child, num_children;  ///< in nodes()
    int first_group, num_groups;    ///< in groups(): sequences whose other pages are not shared
    int member;                     ///< a batch entry that has these pages
    int num_queries;                ///< query tokens of all its members
    int pages() const { return last_page - first_page; }
  };
  /// Sequences that leave the tree at the same node and have the same number of query tokens.
  struct Group {
    int num_queries;          ///< query tokens of each sequence
    int first_leaf, count;    ///< in leaves()
    std::int64_t own_tokens;  ///< tokens after the node, of all sequences
  };

  /// Returns whether any page is shared. Batch entries without query tokens are left out.
  bool build(const BatchPages& pages);

  /// Breadth first: a parent precedes its children, and siblings are adjacent.
  std::span<const Node> nodes() const { return nodes_; }
  int num_roots() const { return num_roots_; }
  std::span<const Group> groups() const { return groups_; }
  /// Batch entries in the order of their groups.
  std::span<const int> leaves() const { return leaves_; }
  /// The groups that share nothing: the first of groups().
  std::span<const Group> unshared() const { return std::span(groups_).first(num_unshared_groups_); }

 private:
  struct Slot {
    std::uint64_t key;
    int value;  ///< a node, or ~b: only batch entry b
  };
  static constexpr int top = -1;  ///< parent of roots

  int& child(int node, int page_id);
  int add_node(int first_page, int last_page, int parent, int member);
  void insert(int b);
  void order_nodes();
  void order_leaves();

  const BatchPages* pages_ = nullptr;
  std::vector<Slot> table_;
  int table_shift_ = 0;
  int last_        = -1;    ///< batch entry that was inserted last
  std::vector<int> path_;   ///< its nodes
  std::vector<int> owner_;  ///< node at which a batch entry leaves the tree
  std::vector<int> shareable_;
  std::vector<Node> nodes_, ordered_;
  std::vector<Group> groups_;
  std::vector<int> leaves_, by_queries_, next_, place_, count_;
  int num_roots_ = 0, num_unshared_groups_ = 0;
};

}  // namespace pagoda::detail
