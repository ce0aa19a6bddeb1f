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
/// Building divides the range of pages in which rows may differ: one look-up for each row says which rows share the
/// first half, and these are then divided in the second half, one row of each set in the first. Ranges of up to
/// pages_at_once pages are not divided: each row is compared with the first one of its set. So a row takes about
/// log2(pages / pages_at_once) look-ups and a few comparisons, and building takes time linear in the table, for any
/// page ids. A sequence that shares nothing costs one look-up of its first page id. Memory is reused by the next build.
class PrefixForest {
 public:
  struct Node {
    int first_page, last_page;      ///< pages of the rows of its members
    int parent;                     ///< negative: a root
    int first_child, num_children;  ///< in nodes()
    int first_group, num_groups;    ///< in groups(): sequences whose other pages are not shared
    int member;                     ///< the first batch entry that has these pages
    int num_queries;                ///< query tokens of all its members
    int pages() const { return last_page - first_page; }
  };
  /// Sequences that leave the tree at the same node and have the same number of query tokens.
  struct Group {
    int node;                 ///< negative: they share nothing
    int num_queries;          ///< query tokens of each sequence
    int first_leaf, count;    ///< in leaves()
    std::int64_t own_tokens;  ///< tokens after the node, of all sequences
  };

  /// Returns whether any page is shared. Batch entries without query tokens are left out.
  bool build(const BatchPages& pages);

  /// Breadth first: a parent precedes its children. Siblings are adjacent, in the order of their members.
  std::span<const Node> nodes() const { return nodes_; }
  int num_roots() const { return num_roots_; }
  std::span<const Group> groups() const { return groups_; }
  /// Batch entries in the order of their groups.
  std::span<const int> leaves() const { return leaves_; }
  /// The groups that share nothing: the first of groups().
  std::span<const Group> unshared() const { return std::span(groups_).first(num_unshared_groups_); }

 private:
  /// A page of an entry's path before which other entries leave it.
  struct Cut {
    int page;
    int next;   ///< cut of the same path; negative: the last one
    int first;  ///< of the entries that leave here; the others follow in next_
  };
  static constexpr int root = -2;  ///< in next_: an entry that has left no other
  /// An entry of a group. All entries of a group share the pages before a range, and the leader is the first of them.
  struct Member {
    const int* row;
    int entry, leader;
  };
  /// Where an entry leaves another, found by divide_block().
  struct Leaving {
    int other, page;
    int next;  ///< entry that leaves at the same page; negative: none
  };
  class Table;

  void copy_rows();
  static std::uint32_t hash(const int* row, int from, int to);
  static bool differ(const int* x, const int* y, int pages);
  int shared_pages(int a, int b, int from, int to) const;
  bool find_first_pages();
  void find_cuts(int longest);
  int classify(const Member* members, int count, int from, int to);
  int classify_by_hash(const Member* members, int count, int from, int to);
  void divide(int begin, int count, int groups, int from, int to);
  void divide_block(Member* members, int count, int from);
  void leave(int b, int other, int page);
  void add_roots();
  void add_nodes();
  int add_groups(int node, int first_leaf);

  const BatchPages* pages_ = nullptr;
  std::vector<const int*> rows_;       ///< page ids of each entry
  std::vector<int> copies_;            ///< of rows whose ids are not contiguous
  std::vector<int> shareable_;         ///< pages of a row that can be shared
  bool differs_ = false;               ///< whether an id has been found at several places
  bool by_hash_ = false;               ///< whether classes are found by all ids of a range
  std::vector<Member> members_;        ///< of ranges that are still to be divided: a stack
  std::vector<int> first_;             ///< first entry of an entry's class
  std::vector<int> last_, count_;      ///< of the class of this first entry: last entry, number of entries
  std::vector<int> leader_;            ///< of an entry's group
  std::vector<int> num_classes_;       ///< of the group of this leader
  std::vector<int> pairs_;             ///< first entries of classes of two
  std::vector<Leaving> leaving_;       ///< of an entry
  std::vector<int> table_;             ///< entries, plus 1, by ids or hashes; 0: none
  std::vector<int> ids_;               ///< of the entries in the table, or hashes
  std::vector<unsigned> at_;           ///< slot of an entry's id in the table
  std::vector<int> first_cut_, next_;  ///< of each entry; negative: none
  std::vector<Cut> cuts_;
  std::vector<Node> nodes_;
  std::vector<Group> groups_;
  std::vector<int> leaves_;
  int num_roots_ = 0, num_unshared_groups_ = 0;
};

}  // namespace pagoda::detail
