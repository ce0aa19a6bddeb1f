// SPDX-License-Identifier: Apache-2.0
#include "src/plan/prefix/forest.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace pagoda::detail {

/// A hash table from page ids to the first entries that have them. All ids are set before the first is looked up: a
/// loop of its own reads the rows, so that a processor overlaps the reads of several.
class PrefixForest::Table {
 public:
  Table(PrefixForest& forest, int count)
      : slots_(std::bit_ceil(4 * static_cast<unsigned>(count))),
        shift_(32 - std::countr_zero(slots_)),
        table_(forest.table_.data()),
        ids_(forest.ids_.data()),
        at_(forest.at_.data()) {
    std::fill_n(table_, slots_ + 1, 0);
  }
  /// Sets the id of an entry. If has_id is false, find_or_add() finds no other entry and does not add this one.
  void set_id(int b, int id, bool has_id) {
    ids_[b + 1] = id;
    at_[b]      = has_id ? static_cast<std::uint32_t>(id) * 0x9e3779b1u >> shift_ : slots_;  // this slot stays empty
  }
  struct Found {
    int first;
    bool found;
  };
  /// Returns the entry that was added with this entry's id, or adds this one. No branch depends on which of the two
  /// happens, because a processor cannot predict that.
  Found find_or_add(int b) {
    const int id = ids_[b + 1];
    unsigned at  = at_[b];
    ids_[0]      = id;  // no entry: the search ends
    while (ids_[table_[at]] != id) at = (at + 1) & (slots_ - 1);
    const int found = table_[at], is_new = found == 0, first = found | ((b + 1) & -is_new);
    table_[at] = at == slots_ ? 0 : first;
    return {first - 1, is_new == 0};
  }

 private:
  unsigned slots_;
  int shift_;
  int* table_;    ///< entry + 1; 0: none
  int* ids_;      ///< of entry - 1
  unsigned* at_;  ///< slot of an entry
};

/// Whether the pages of two rows differ.
inline bool PrefixForest::differ(const int* x, const int* y, int pages) {
  return std::memcmp(x, y, static_cast<std::size_t>(pages) * sizeof(int)) != 0;
}

inline std::uint32_t PrefixForest::hash(const int* row, int from, int to) {
  std::uint64_t hash = 0;
  for (int page = from; page < to; ++page)
    hash = (hash ^ static_cast<std::uint32_t>(row[page])) * 0x9e3779b97f4a7c15u, hash ^= hash >> 32;
  return static_cast<std::uint32_t>(hash);
}

/// Pages that two entries share, which are at least `from`; at most to - 1.
inline int PrefixForest::shared_pages(int a, int b, int from, int to) const {
  return common_end({rows_[a]}, {rows_[b]}, from, std::min({shareable_[a], shareable_[b], to - 1}));
}

/// Divides the entries of each group, which share `from` pages, into classes that share `to`. Returns the number of
/// classes, and sets first_, last_, count_ and num_classes_.
///
/// In tables of a cache, an id stands at one place of one path. So the last id of a range says which range it is, and
/// leave() compares the others.
int PrefixForest::classify(const Member* members, int count, int from, int to) {
  if (by_hash_) return classify_by_hash(members, count, from, to);
  Table table(*this, count);
  for (int i = 0; i < count; ++i) {
    const auto [row, b, leader] = members[i];
    const int pages             = shareable_[b];
    table.set_id(b, row[std::min(pages, to) - 1], pages >= to);
    leader_[b] = leader, count_[b] = 0;
  }
  int classes = 0, differs = 0;
  for (int i = 0; i < count; ++i) {
    const int b = members[i].entry, leader = members[i].leader;
    const auto [first, found] = table.find_or_add(b);
    first_[b]                 = first;
    last_[first]              = b;
    ++count_[first];
    differs |= leader_[first] ^ leader;
    classes += !found;
    num_classes_[leader] = (num_classes_[leader] & -static_cast<int>(b != leader)) + !found;
  }
  differs_ |= differs != 0;
  return classes;
}

/// The same for any ids, in time linear in the pages of the ranges.
int PrefixForest::classify_by_hash(const Member* members, int count, int from, int to) {
  const std::size_t slots = std::bit_ceil(4 * static_cast<std::size_t>(count));
  std::fill_n(table_.begin(), slots, 0);
  int classes = 0;
  for (int i = 0; i < count; ++i) {
    const auto [row, b, leader] = members[i];
    const bool whole            = shareable_[b] >= to;
    const std::uint32_t key     = whole ? hash(row, from, to) : 0;
    const std::uint64_t mixed   = (std::uint64_t(static_cast<std::uint32_t>(leader)) << 32 | key) * 0x9e3779b97f4a7c15u;
    std::size_t at              = mixed >> 32 & (slots - 1);
    const auto same             = [&, key, leader](int other) {
      return ids_[other + 1] == static_cast<int>(key) && leader_[other] == leader &&
             !differ(rows_[other] + from, row + from, to - from);
    };
    while (whole && table_[at] != 0 && !same(table_[at] - 1)) at = (at + 1) & (slots - 1);
    const bool found = whole && table_[at] != 0;
    const int first  = found ? table_[at] - 1 : b;
    if (whole) table_[at] = first + 1, ids_[b + 1] = static_cast<int>(key);
    leader_[b] = leader, count_[b] = 0;
    first_[b]    = first;
    last_[first] = b;
    ++count_[first];
    classes += !found;
    num_classes_[leader] = (b == leader ? 0 : num_classes_[leader]) + !found;
  }
  return classes;
}

/// Entry b leaves the path of another before this page. For each path, calls come in descending order of pages, and of
/// entries that leave at the same page. Sets differs_ if the entries do not share the pages before: then an id stands
/// at several places, and build() begins again with classify_by_hash().
inline void PrefixForest::leave(int b, int other, int page) {
  if (!by_hash_) differs_ |= differ(rows_[b], rows_[other], page);
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
    if (!by_hash_ && to - from <= pages_at_once + 1) return divide_block(&members_[begin], count, from);
    int middle = from + (to - from) / 2;
    if (!divided) {
      const Member& m = members_[begin + count - 1];
      middle          = std::max(shared_pages(m.entry, m.leader, from, to), from + 1);
    }
    const int classes = classify(&members_[begin], count, from, middle);
    if (differs_) return;
    divided = classes > groups && classes < count;
    if (classes == groups) {
      from = middle;
      continue;
    }
    if (divided) {
      const auto needed = static_cast<std::size_t>(begin) + 2 * static_cast<std::size_t>(count);
      if (members_.size() < needed) members_.resize(2 * needed);
      Member *const lower = &members_[begin], *const upper = lower + count;
      int upper_count = 0, upper_groups = 0, kept = 0, pairs = 0;
      groups = 0;
      for (int i = 0; i < count; ++i) {
        const auto [row, b, leader] = lower[i];
        const int first = first_[b], more = count_[first];
        const bool is_first = first == b, keep = is_first & (num_classes_[leader] > 1);
        upper[upper_count] = {row, b, first};
        lower[kept]        = {row, b, leader};
        pairs_[pairs]      = b;
        upper_count += more > 2, upper_groups += is_first & (more > 2);
        kept += keep, groups += keep & (b == leader);
        pairs += is_first & (more == 2);
      }
      for (int i = 0; i < pairs; ++i) {
        const int b = pairs_[i], other = last_[b];
        leave(other, b, shared_pages(other, b, middle, to));
      }
      divide(begin + count, upper_count, upper_groups, middle, to);
      count = kept;
    }
    to = middle;
  }
  for (int i = count - 1; i >= 0; --i) {
    const auto [row, b, leader] = members_[begin + i];
    if (b != leader) leave(b, leader, from);
  }
}

/// The same for a range in which entries share at most pages_at_once pages. Compares each entry with its leader. Of the
/// entries that leave it with the same next page, the first one becomes the leader of the others, until no entry has a
/// leader with its next page.
void PrefixForest::divide_block(Member* members, int count, int from) {
  constexpr int none = pages_at_once + 1;  // of entries that leave nothing yet
  int heads[none + 1];                     // of lists of entries, by the page at which they leave
  std::fill_n(heads, none + 1, -1);
  std::uint64_t used = 0;
  int differs        = 0;
  while (count > 0) {
    Table table(*this, count);
    for (int i = 0; i < count; ++i) {
      const auto [row, b, leader] = members[i];
      const int *const other = rows_[leader], pages = shareable_[b], both = std::min(pages, shareable_[leader]);
      int page = from;
      if (both >= pages_at_once) {
        const int block          = std::min(from, both - pages_at_once);  // ends where the shorter row does
        const std::uint64_t bits = differing_pages(row + block, other + block);
        page                     = std::max(block + std::countr_zero(bits | std::uint64_t(1) << pages_at_once), from);
      } else {
        page = common_end({row}, {other}, from, both);
      }
      table.set_id(b, row[std::min(page, pages - 1)], page < pages && b != leader);
      leaving_[b].other = leader, leaving_[b].page = page;
    }
    int kept = 0;
    for (int i = 0; i < count; ++i) {
      const auto [row, b, leader] = members[i];
      const auto [first, found]   = table.find_or_add(b);
      const int page = leaving_[b].page, stays = static_cast<int>(found) | static_cast<int>(b == leader);
      const int at     = stays != 0 ? none : page - from;
      leaving_[b].next = heads[at];
      heads[at]        = b;
      used |= std::uint64_t(1) << at;
      differs |= (leaving_[first].other ^ leader) | (leaving_[first].page ^ page);
      members[kept] = {row, b, first};
      kept += found;
    }
    count = kept;
  }
  differs_ |= differs != 0;
  for (used &= ~(std::uint64_t(1) << none); used != 0;) {
    const int at = std::bit_width(used) - 1;
    used ^= std::uint64_t(1) << at;
    for (int b = heads[at]; b >= 0; b = leaving_[b].next) leave(b, leaving_[b].other, from + at);
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
  nodes_.clear(), groups_.clear(), leaves_.clear();
  num_roots_ = num_unshared_groups_ = 0;
  if (!pages.paged() || batch < 2) return false;
  const auto n = static_cast<std::size_t>(batch);
  for (auto* of_entries : {&shareable_, &first_, &last_, &count_, &leader_, &num_classes_, &pairs_})
    of_entries->resize(n);
  rows_.resize(n), leaving_.resize(n), table_.resize(std::bit_ceil(4 * n) + 1), ids_.resize(n + 1), at_.resize(n);
  const PageDivisor pages_of(pages.page_size);
  int longest = 0;
  for (int b = 0; b < batch; ++b) {
    const int queries = pages.num_queries(b);
    shareable_[b]     = queries > 0 ? pages_of(std::max(pages.seq_len(b) - queries, 0)) : 0;
    rows_[b]          = shareable_[b] > 0 ? pages.row(b).ids : nullptr;
    longest           = std::max(longest, shareable_[b]);
  }
  if (longest == 0) return false;
  if (pages.block_table && pages.page_stride != 1) copy_rows();
  for (const bool by_hash : {false, true}) {
    by_hash_ = by_hash;
    if (!find_first_pages()) return false;
    find_cuts(longest);
    if (!differs_) break;
  }
  add_roots();
  add_nodes();
  return true;
}

/// Sets the first entry that has the first page of each, and count_. Returns whether any first page is shared.
bool PrefixForest::find_first_pages() {
  const int batch = pages_->batch;
  Table table(*this, batch);
  for (int b = 0; b < batch; ++b)
    if (shareable_[b] > 0) table.set_id(b, rows_[b][0], true), count_[b] = 0;
  bool any = false;
  for (int b = 0; b < batch; ++b) {
    if (shareable_[b] == 0) continue;
    const auto [first, found] = table.find_or_add(b);
    first_[b]                 = first;
    ++count_[first];
    any |= found;
  }
  return any;
}

/// Finds where entries leave each other.
void PrefixForest::find_cuts(int longest) {
  const auto n = rows_.size();
  if (members_.size() < 2 * n) members_.resize(2 * n);
  differs_ = false;
  cuts_.clear(), first_cut_.assign(n, -1), next_.assign(n, root);
  int kept = 0, groups = 0;
  for (int b = 0; b < pages_->batch; ++b) {
    if (shareable_[b] == 0) continue;
    members_[kept] = {rows_[b], b, first_[b]};
    kept += count_[first_[b]] > 1, groups += static_cast<int>(first_[b] == b) & static_cast<int>(count_[b] > 1);
  }
  divide(0, kept, groups, 1, longest + 1);
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
  nodes_.reserve(cuts_.size()), leaves_.reserve(rows_.size());
  for (int v = 0, next = num_roots_; v < next; ++v) {
    const Cut& node_cut = cuts_[nodes_[v].first_group];
    const int page = node_cut.page, first_child = next;
    const auto first_leaf = leaves_.size();
    const auto add        = [&](int b, int cut) {
      if (cut >= 0)
        nodes_.push_back({page, cuts_[cut].page, v, 0, 0, cut, 0, b, 0}), ++next;
      else
        leaves_.push_back(b);
    };
    add(nodes_[v].member, node_cut.next);
    for (int b = node_cut.first; b >= 0; b = next_[b]) add(b, first_cut_[b]);
    Node& node        = nodes_[v];
    node.first_child  = first_child;
    node.num_children = next - first_child;
    node.first_group  = static_cast<int>(groups_.size());
    node.num_queries  = add_groups(v, static_cast<int>(first_leaf));
    node.num_groups   = static_cast<int>(groups_.size()) - node.first_group;
  }
  for (int v = static_cast<int>(nodes_.size()) - 1; v >= num_roots_; --v)
    nodes_[nodes_[v].parent].num_queries += nodes_[v].num_queries;
}

/// Adds the groups of a node, which are those of leaves first_leaf and on. Returns their query tokens.
inline int PrefixForest::add_groups(int node, int first_leaf) {
  const BatchPages& p = *pages_;
  const int last_leaf = static_cast<int>(leaves_.size());
  if (p.cu_seqlens_q)
    std::sort(leaves_.begin() + first_leaf, leaves_.end(), [&](int a, int b) {
      const int qa = p.num_queries(a), qb = p.num_queries(b);
      return qa != qb ? qa < qb : a < b;
    });
  const int shared_tokens = node < 0 ? 0 : nodes_[node].last_page * p.page_size;
  int all_queries         = 0;
  for (int leaf = first_leaf; leaf < last_leaf;) {
    const int first = leaf, queries = p.num_queries(leaves_[leaf]);
    std::int64_t own_tokens = 0;
    do {
      own_tokens += p.seq_len(leaves_[leaf++]) - shared_tokens;
    } while (leaf < last_leaf && (!p.cu_seqlens_q || p.num_queries(leaves_[leaf]) == queries));
    groups_.push_back({node, queries, first, leaf - first, own_tokens});
    all_queries += (leaf - first) * queries;
  }
  return all_queries;
}

}  // namespace pagoda::detail
