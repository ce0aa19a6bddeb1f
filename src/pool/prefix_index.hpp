// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace pagoda::detail {

/// The name of a full page: its token ids, or a hash if there are no ids. `salt` counts for a page without a parent.
struct PageName {
  std::span<const int> tokens = {};
  std::uint64_t hash          = 0;
  std::uint64_t salt          = 0;
};

/// A tree of full pages, on the host only. A node is a page, so nodes are numbered as pages and all memory is allocated
/// at once. A node is found through a hash table by its parent and its name; equal hashes are told apart by comparing
/// the parent and the token ids.
///
/// A page is blocked while it has a hold or a blocked child. All others are evictable and form a list in the order in
/// which they became so. A page becomes evictable after its children, hence the first of the list is always a leaf, and
/// the list is the order of eviction: least recently used first, children before their parent.
///
/// Every operation takes constant time, plus the time to read a page's name, plus a step for each page that becomes
/// blocked or evictable. Only enable() allocates.
/// Source: Zheng et al., SGLang, section 3 (the tree, eviction of leaves); Kwon et al., PagedAttention, section 4.4.
class PrefixIndex {
 public:
  static constexpr int root = -1;  ///< the parent of first pages
  static constexpr int none = -2;  ///< no page

  /// hash_mask: bits of the hashes that are used; tests take few, so that hashes collide.
  PrefixIndex(int num_pages, int page_size, std::uint64_t hash_mask = ~std::uint64_t(0));
  /// Allocates the index, unless that is done. Must be called before insert.
  void enable();
  bool enabled() const { return !nodes_.empty(); }

  bool contains(int page) const { return enabled() && nodes_[page].present; }
  int parent(int page) const { return nodes_[page].parent; }
  /// Token ids of a page; none if it was named by a hash.
  std::span<const int> tokens(int page) const;
  /// Number of pages, and of those that can be evicted.
  int size() const { return size_; }
  int evictable() const { return evictable_; }
  bool is_evictable(int page) const { return contains(page) && nodes_[page].blockers == 0; }

  /// The child of `parent` that has this name, or none.
  int find(int parent, const PageName& name) const;
  /// Adds a page, with one hold, as a child of `parent`. The parent must not have a child of that name yet.
  void insert(int parent, const PageName& name, int page) noexcept;
  /// A page with a hold is not evicted, nor are those before it.
  void hold(int page) noexcept;
  /// Takes back a hold.
  void drop(int page) noexcept;
  /// Reverts the last hold that is not reverted yet: a page that becomes evictable returns to its former place in the
  /// order. The pages before it must have holds.
  void undo_hold(int page) noexcept;
  /// Removes the page that is first in the order of eviction. There must be one.
  int evict() noexcept;
  /// Removes an evictable page that has no children.
  void remove(int page) noexcept;
  /// Reverts the last evict that is not reverted yet.
  void undo_evict(int page) noexcept;

 private:
  struct Node {
    std::uint64_t hash = 0, salt = 0, name_hash = 0;  ///< hash: of all names from the root to here
    int parent         = root;
    int next_in_bucket = none;
    int before = none, after = none;  ///< neighbours in the list of evictable pages; kept when the page leaves it
    int blockers = 0;                 ///< holds and blocked children
    bool by_hash = false, present = false;
  };

  std::uint64_t hash_of(int parent, const PageName& name) const;
  int& bucket_of(std::uint64_t hash) { return buckets_[hash % buckets_.size()]; }
  void add_to_bucket(int page) noexcept;
  void remove_from_list(int page) noexcept;
  void return_to_list(int page) noexcept;

  int num_pages_, page_size_;
  std::uint64_t hash_mask_;
  std::vector<Node> nodes_;   ///< [num_pages + 1]; the last is the head of the list
  std::vector<int> buckets_;  ///< first page of each
  std::vector<int> tokens_;   ///< [num_pages, page_size]
  int size_ = 0, evictable_ = 0;
};

}  // namespace pagoda::detail
