// SPDX-License-Identifier: Apache-2.0
#include "src/plan/prefix/forest.hpp"

#include <algorithm>
#include <bit>
#include <numeric>

namespace pagoda::detail {

namespace {
constexpr std::uint64_t empty_key = ~std::uint64_t(0);  // marks an empty place
constexpr int no_child            = INT32_MIN;
}  // namespace

/// Returns the child of `node` whose first page is page_id; for a new one, no_child. Open addressing: each batch entry
/// inserts at most two keys, and the table has room for four.
int& PrefixForest::child(int node, int page_id) {
  const std::uint64_t key =
      std::uint64_t(static_cast<std::uint32_t>(node + 1)) << 32 | static_cast<std::uint32_t>(page_id);
  const std::uint64_t mask = table_.size() - 1;
  std::uint64_t at         = (key * 0x9e3779b97f4a7c15u) >> table_shift_;
  while (table_[at].key != key && table_[at].key != empty_key) at = (at + 1) & mask;
  table_[at].key = key;
  return table_[at].value;
}

int PrefixForest::add_node(int first_page, int last_page, int parent, int member) {
  nodes_.push_back({first_page, last_page, parent, 0, 0, 0, 0, member, 0});
  return static_cast<int>(nodes_.size()) - 1;
}

/// Follows the pages of batch entry b as far as they are known, and splits the node in which they end. Starts with the
/// nodes that it shares with the last sequence: neighbours in a batch are often neighbours in the tree.
void PrefixForest::insert(int b) {
  const PageRow row = pages_->row(b);
  const int end     = shareable_[b];
  int at = top, page = 0;
  if (last_ < 0 || row[0] != pages_->row(last_)[0]) {
    path_.clear();
  } else {
    const int known = common_end(row, pages_->row(last_), 1, std::min(end, shareable_[last_]));
    while (!path_.empty() && nodes_[path_.back()].last_page > known) path_.pop_back();
    if (!path_.empty()) at = path_.back(), page = nodes_[at].last_page;
  }
  last_              = b;
  const auto descend = [&](int node, int last) {
    path_.push_back(node);
    at = node, page = last;
  };
  while (page < end) {
    int& found = child(at, row[page]);
    if (found == no_child) {
      found = ~b;
      break;
    }
    if (found < 0) {  // one other sequence: the shared pages become a node
      const int other         = ~found;
      const PageRow other_row = pages_->row(other);
      const int last          = common_end(row, other_row, page + 1, std::min(end, shareable_[other]));
      const int node = found = add_node(page, last, at, other);
      if (last < shareable_[other]) child(node, other_row[last]) = ~other;
      owner_[other] = node;
      descend(node, last);
      continue;
    }
    const int node           = found;
    const PageRow member_row = pages_->row(nodes_[node].member);
    const int node_end       = nodes_[node].last_page;
    const int last           = common_end(row, member_row, page + 1, std::min(end, node_end));
    if (last == node_end) {
      descend(node, last);
      continue;
    }
    const int upper = found = add_node(page, last, at, nodes_[node].member);
    nodes_[node].first_page = last, nodes_[node].parent = upper;
    child(upper, member_row[last]) = node;
    descend(upper, last);
  }
  owner_[b] = at;
}

bool PrefixForest::build(const BatchPages& pages) {
  pages_          = &pages;
  const int batch = pages.batch;
  nodes_.clear(), groups_.clear(), leaves_.clear();
  num_roots_ = num_unshared_groups_ = 0;
  if (!pages.paged() || batch < 2) return false;
  const auto capacity = std::bit_ceil(std::max<std::size_t>(4 * static_cast<std::size_t>(batch), 16));
  last_               = -1, path_.clear();
  table_.assign(capacity, {empty_key, no_child});
  table_shift_ = 64 - std::countr_zero(capacity);
  owner_.assign(static_cast<std::size_t>(batch), top);
  shareable_.resize(static_cast<std::size_t>(batch));
  for (int b = 0; b < batch; ++b) {
    shareable_[b] = pages.num_queries(b) > 0 ? pages.shareable_pages(b) : 0;
    if (shareable_[b] > 0) insert(b);
  }
  if (nodes_.empty()) return false;
  order_nodes();
  order_leaves();
  return true;
}

/// Numbers the nodes breadth first.
void PrefixForest::order_nodes() {
  const int n = static_cast<int>(nodes_.size());
  next_.assign(static_cast<std::size_t>(n), -1);
  place_.assign(static_cast<std::size_t>(n) + 1, -1);  // first child of each; the last: the first root
  for (int v = n - 1; v >= 0; --v) {
    int& head = place_[nodes_[v].parent == top ? n : nodes_[v].parent];
    next_[v]  = head;
    head      = v;
  }
  ordered_.clear();
  count_.resize(static_cast<std::size_t>(n));  // old numbers in the new order
  int filled             = 0;
  const auto append_list = [&](int v, int parent) {
    for (; v >= 0; v = next_[v]) {
      count_[filled++] = v;
      ordered_.push_back(nodes_[v]);
      ordered_.back().parent = parent;
    }
  };
  append_list(place_[n], top);
  num_roots_ = filled;
  for (int i = 0; i < n; ++i) {
    ordered_[i].first_child = filled;
    append_list(place_[count_[i]], i);
    ordered_[i].num_children = filled - ordered_[i].first_child;
  }
  for (int i = 0; i < n; ++i) place_[count_[i]] = i;  // from old to new numbers
  nodes_.swap(ordered_);
}

/// Sorts batch entries by node (counting sort) and, within a node, by their number of query tokens.
void PrefixForest::order_leaves() {
  const BatchPages& p = *pages_;
  by_queries_.resize(static_cast<std::size_t>(p.batch));
  std::iota(by_queries_.begin(), by_queries_.end(), 0);
  if (p.cu_seqlens_q)
    std::sort(by_queries_.begin(), by_queries_.end(), [&](int a, int b) {
      const int qa = p.num_queries(a), qb = p.num_queries(b);
      return qa != qb ? qa < qb : a < b;
    });
  const int n = static_cast<int>(nodes_.size());
  // Entry 0 counts sequences that share nothing.
  count_.assign(static_cast<std::size_t>(n) + 2, 0);
  for (int b = 0; b < p.batch; ++b) {
    if (owner_[b] != top) owner_[b] = place_[owner_[b]];
    if (p.num_queries(b) > 0) ++count_[owner_[b] + 2];
  }
  for (int v = 0; v <= n; ++v) count_[v + 1] += count_[v];
  leaves_.resize(static_cast<std::size_t>(count_[n + 1]));
  for (const int b : by_queries_)
    if (p.num_queries(b) > 0) leaves_[count_[owner_[b] + 1]++] = b;  // leaves count_[v] at the begin of node v
  int leaf = 0;
  for (int v = -1; v < n; ++v) {
    const int first_group = static_cast<int>(groups_.size()), end = count_[v + 1];
    const int shared = v < 0 ? 0 : nodes_[v].last_page * p.page_size;
    int queries      = 0;
    for (; leaf < end; ++leaf) {
      const int b = leaves_[leaf], q = p.num_queries(b);
      if (static_cast<int>(groups_.size()) == first_group || groups_.back().num_queries != q)
        groups_.push_back({q, leaf, 0, 0});
      ++groups_.back().count, groups_.back().own_tokens += p.seq_len(b) - shared;
      queries += q;
    }
    const int num_groups = static_cast<int>(groups_.size()) - first_group;
    if (v < 0) {
      num_unshared_groups_ = num_groups;
    } else {
      nodes_[v].first_group = first_group, nodes_[v].num_groups = num_groups;
      nodes_[v].num_queries = queries;
    }
  }
  for (int v = n - 1; v >= 0; --v)
    if (nodes_[v].parent != top) nodes_[nodes_[v].parent].num_queries += nodes_[v].num_queries;
}

}  // namespace pagoda::detail
