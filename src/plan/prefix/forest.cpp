// SPDX-License-Identifier: Apache-2.0
#include "src/plan/prefix/forest.hpp"

#include <algorithm>
#include <bit>

namespace pagoda::detail {

/// Whether two rows differ in a range of pages.
inline bool PrefixForest::differ(int a, int b, int from, int to) const {
  if (a == b && to - from > 64) return false;
  const int *const x = rows_[a], *const y = rows_[b];
  int bits = 0;  // no exit inside the loop, so that the compiler vectorizes it
  for (int page = from; page < to; ++page) bits |= x[page] ^ y[page];
  return bits != 0;
}

inline std::uint32_t PrefixForest::hash(int b, int from, int to) const {
  std::uint64_t hash = 0;
  for (int page = from; page < to; ++page)
    hash = (hash ^ static_cast<std::uint32_t>(rows_[b][page])) * 0x9e3779b97f4a7c15u, hash ^= hash >> 32;
  return static_cast<std::uint32_t>(hash);
}

/// Pages that two entries share, which are at least `from`; at most to - 1.
inline int PrefixForest::shared_pages(int a, int b, int from, int to) const {
  return common_end({rows_[a]}, {rows_[b]}, from, std::min({shareable_[a], shareable_[b], to - 1}));
}

/// Divides the entries of each group, which share `from` pages, into classes that share `to`. Returns the number of
/// classes, and sets class_of_ and classes_, in the order of their first entries.
///
/// In tables of a cache, an id stands at one place of one path. So the last id of a range says which range it is, and
/// the others are compared afterwards. No branch depends on whether an entry is the first of its class, because a
/// processor cannot predict that.
int PrefixForest::classify(const Member* members, int count, int from, int to) {
  if (by_hash_) return classify_by_hash(members, count, from, to);
  const unsigned slots = std::bit_ceil(4 * static_cast<unsigned>(count));
  const int shift      = 64 - std::countr_zero(slots);
  int* const table     = table_.data();
  Class* const classes = classes_.data();
  int* const class_of  = class_of_.data();
  std::fill_n(table, slots, 0);
  int last = 0;
  for (int i = 0; i < count; ++i) {
    const auto [b, leader] = members[i];
    int c                  = last + 1;
    if (shareable_[b] >= to) {
      const std::uint64_t key =
          std::uint64_t(static_cast<std::uint32_t>(leader)) << 32 | static_cast<std::uint32_t>(rows_[b][to - 1]);
      classes[0].key   = key;  // no class: the search ends
      std::uint64_t at = key * 0x9e3779b97f4a7c15u >> shift;
      while (classes[table[at]].key != key) at = (at + 1) & (slots - 1);
      const int found = table[at];
      classes[c]      = {key, b, b, 0};
      c               = found | (c & -static_cast<int>(found == 0));
      table[at]       = c;
    } else {
      classes[c] = {std::uint64_t(static_cast<std::uint32_t>(leader)) << 32, b, b, 0};
    }
    last            = std::max(last, c);
    class_of[i]     = c;
    classes[c].last = b;
    ++classes[c].count;
  }
  if (last == count || to - from == 1) return last;
  int differs = 0;
  for (int i = 0; i < count; ++i) {
    const int b = members[i].entry;
    differs |= differ(classes[class_of[i]].first, b, from, std::min(to - 1, shareable_[b]));
  }
  if (!differs) return last;
  by_hash_ = true;
  return classify_by_hash(members, count, from, to);
}

/// The same for any ids: takes time linear in the pages of the ranges.
int PrefixForest::classify_by_hash(const Member* members, int count, int from, int to) {
  const unsigned slots = std::bit_ceil(4 * static_cast<unsigned>(count));
  const int shift      = 64 - std::countr_zero(slots);
  std::fill_n(table_.begin(), slots, 0);
  int last = 0;
  for (int i = 0; i < count; ++i) {
    const auto [b, leader]  = members[i];
    const bool whole        = shareable_[b] >= to;
    const std::uint64_t key = std::uint64_t(static_cast<std::uint32_t>(leader)) << 32 | (whole ? hash(b, from, to) : 0);
    std::uint64_t at        = key * 0x9e3779b97f4a7c15u >> shift;
    int c                   = whole ? table_[at] : 0;
    while (c != 0 && (classes_[c].key != key || differ(classes_[c].first, b, from, to)))
      at = (at + 1) & (slots - 1), c = table_[at];
    if (c == 0) {
      c           = ++last;
      classes_[c] = {key, b, b, 0};
      if (whole) table_[at] = c;
    }
    class_of_[i]     = c;
    classes_[c].last = b;
    ++classes_[c].count;
  }
  return last;
}

/// Entry b leaves the path of another before this page. For each path, calls come in descending order of pages, and of
/// entries that leave at the same page.
inline void PrefixForest::leave(int b, int other, int page) {
  int& cut = first_cut_[other];
  if (cut < 0 || cuts_[cut].page != page) {
    cuts_.push_back({page, cut, -1});
    cut = static_cast<int>(cuts_.size()) - 1;
  }
  next_[b]         = cuts_[cut].first;
  cuts_[cut].first = b;
}

/// Finds where the entries of groups leave each other, of which no two share `to` pages. An entry leaves the first one
/// in the batch with which it shares most. Takes `count` members from `begin` on, the last ones of members_. Divides at
/// the middle of the range, or, if that divided no group, where an entry leaves its leader.
void PrefixForest::divide(int begin, int count, int groups, int from, int to) {
  bool divided = true;  // by the last step
  while (count > 0 && to - from > 1) {
    int middle = from + (to - from) / 2;
    if (!divided) {
      const auto [b, leader] = members_[begin + count - 1];
      middle                 = std::max(shared_pages(b, leader, from, to), from + 1);
    }
    const int last = classify(&members_[begin], count, from, middle);
    divided        = last > groups && last < count;
    if (last == groups) {
      from = middle;
      continue;
    }
    if (divided) {
      const auto needed = static_cast<std::size_t>(begin) + 2 * static_cast<std::size_t>(count);
      if (members_.size() < needed) members_.resize(2 * needed);
      const Class* const classes = classes_.data();
      int end = begin + count, shared_groups = 0;
      for (int i = 0; i < count; ++i) {
        const Class& c = classes[class_of_[i]];
        members_[end]  = {members_[begin + i].entry, c.first};
        end += c.count > 2;
      }
      for (int c = 1; c <= last; ++c) {
        shared_groups += classes[c].count > 2;
        ++num_classes_[classes[c].leader()];
        if (classes[c].count == 2)
          leave(classes[c].last, classes[c].first, shared_pages(classes[c].last, classes[c].first, middle, to));
      }
      const int upper = begin + count;
      int kept        = begin;
      groups          = 0;
      for (int c = 1; c <= last; ++c) {
        const bool keep = num_classes_[classes[c].leader()] > 1;
        members_[kept]  = {classes[c].first, classes[c].leader()};
        kept += keep, groups += keep & (classes[c].first == classes[c].leader());
      }
      for (int c = 1; c <= last; ++c) num_classes_[classes[c].leader()] = 0;
      divide(upper, end - upper, shared_groups, middle, to);
      count = kept - begin;
    }
    to = middle;
  }
  for (int i = count - 1; i >= 0; --i) {
    const auto [b, leader] = members_[begin + i];
    if (b != leader) leave(b, leader, from);
  }
}

/// Copies ids that are not contiguous.
void PrefixForest::copy_rows() {
  std::size_t ids = 0;
  for (int b = 0; b < pages_->batch; ++b) ids += static_cast<std::size_t>(shareable_[b]);
  copies_.resize(ids);
  int* copy = copies_.data();
  for (int b = 0; b < pages_->batch; ++b) {
    if (shareable_[b] == 0) continue;
    const PageRow row = pages_->row(b);
    rows_[b]          = copy;
    for (int page = 0; page < shareable_[b]; ++page) *copy++ = row[page];
  }
}

bool PrefixForest::build(const BatchPages& pages) {
  pages_          = &pages;
  const int batch = pages.batch;
  nodes_.clear(), groups_.clear(), leaves_.clear(), cuts_.clear();
  num_roots_ = num_unshared_groups_ = 0;
  by_hash_                          = false;
  if (!pages.paged() || batch < 2) return false;
  const auto n = static_cast<std::size_t>(batch);
  rows_.resize(n), shareable_.resize(n), class_of_.resize(n), classes_.resize(n + 1), num_classes_.resize(n);
  if (members_.size() < 2 * n) members_.resize(2 * n);
  table_.resize(std::bit_ceil(4 * n));
  int count = 0, longest = 0;
  for (int b = 0; b < batch; ++b) {
    shareable_[b] = pages.num_queries(b) > 0 ? pages.shareable_pages(b) : 0;
    if (shareable_[b] == 0) continue;
    rows_[b]          = pages.row(b).ids;
    members_[count++] = {b, 0};
    longest           = std::max(longest, shareable_[b]);
  }
  if (count == 0) return false;
  if (pages.block_table && pages.page_stride != 1) copy_rows();
  const int last = classify(members_.data(), count, 0, 1);
  if (last == count) return false;
  first_cut_.assign(n, -1), next_.assign(n, root);
  int kept = 0, groups = 0;
  for (int i = 0; i < count; ++i) {
    const Class& c = classes_[class_of_[i]];
    members_[kept] = {members_[i].entry, c.first};
    kept += c.count > 1;
  }
  for (int c = 1; c <= last; ++c) groups += classes_[c].count > 1;
  divide(0, kept, groups, 1, longest + 1);
  add_roots();
  add_nodes();
  return true;
}

/// Adds the first node of each tree, and the groups that share nothing.
inline void PrefixForest::add_roots() {
  for (int b = 0; b < pages_->batch; ++b) {
    if (next_[b] != root || pages_->num_queries(b) == 0) continue;
    if (const int cut = first_cut_[b]; cut >= 0)
      nodes_.push_back({0, cuts_[cut].page, -1, 0, 0, cut, 0, b, 0});
    else
      leaves_.push_back(b);
  }
  num_roots_ = static_cast<int>(nodes_.size());
  add_groups(-1, 0);
  num_unshared_groups_ = static_cast<int>(groups_.size());
}

/// Adds the other nodes and the groups of all, node by node. Until a node's turn comes, first_group is its cut.
inline void PrefixForest::add_nodes() {
  for (int v = 0; v < static_cast<int>(nodes_.size()); ++v) {
    const Node node      = nodes_[v];
    const Cut cut        = cuts_[node.first_group];
    const int first_leaf = static_cast<int>(leaves_.size()), first_group = static_cast<int>(groups_.size());
    nodes_[v].first_child = static_cast<int>(nodes_.size()), nodes_[v].first_group = first_group;
    const auto add = [&](int b, int next_cut) {
      if (next_cut >= 0)
        nodes_.push_back({node.last_page, cuts_[next_cut].page, v, 0, 0, next_cut, 0, b, 0});
      else
        leaves_.push_back(b);
    };
    add(node.member, cut.next);
    for (int b = cut.first; b >= 0; b = next_[b]) add(b, first_cut_[b]);
    add_groups(v, first_leaf);
    nodes_[v].num_children = static_cast<int>(nodes_.size()) - nodes_[v].first_child;
    nodes_[v].num_groups   = static_cast<int>(groups_.size()) - first_group;
    for (int g = first_group; g < static_cast<int>(groups_.size()); ++g)
      nodes_[v].num_queries += groups_[g].count * groups_[g].num_queries;
  }
  for (int v = static_cast<int>(nodes_.size()) - 1; v >= num_roots_; --v)
    nodes_[nodes_[v].parent].num_queries += nodes_[v].num_queries;
}

/// Adds the groups of a node, which are those of leaves first_leaf and on.
inline void PrefixForest::add_groups(int node, int first_leaf) {
  const BatchPages& p = *pages_;
  if (p.cu_seqlens_q)
    std::sort(leaves_.begin() + first_leaf, leaves_.end(), [&](int a, int b) {
      const int qa = p.num_queries(a), qb = p.num_queries(b);
      return qa != qb ? qa < qb : a < b;
    });
  const int shared_tokens = node < 0 ? 0 : nodes_[node].last_page * p.page_size;
  int queries             = -1;
  for (int leaf = first_leaf; leaf < static_cast<int>(leaves_.size()); ++leaf) {
    const int b = leaves_[leaf], q = p.num_queries(b);
    if (q != queries) groups_.push_back({node, queries = q, leaf, 0, 0});
    ++groups_.back().count, groups_.back().own_tokens += p.seq_len(b) - shared_tokens;
  }
}

}  // namespace pagoda::detail
