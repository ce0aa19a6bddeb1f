// SPDX-License-Identifier: Apache-2.0
#include "src/pool/prefix_index.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <utility>

namespace pagoda::detail {

namespace {

/// The finalizer of splitmix64, which spreads every bit of x over the result.
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

PrefixIndex::PrefixIndex(int num_pages, int page_size, std::uint64_t hash_mask)
    : num_pages_(num_pages), page_size_(page_size), hash_mask_(hash_mask) {}

void PrefixIndex::enable() {
  if (enabled()) return;
  std::vector<int> buckets(num_pages_, none), tokens(static_cast<std::size_t>(num_pages_) * page_size_);
  nodes_.resize(static_cast<std::size_t>(num_pages_) + 1);
  buckets_.swap(buckets);
  tokens_.swap(tokens);
  nodes_[num_pages_].before = nodes_[num_pages_].after = num_pages_;
}

std::span<const int> PrefixIndex::tokens(int page) const {
  const auto size = static_cast<std::size_t>(page_size_);
  return std::span(tokens_).subspan(page * size, nodes_[page].by_hash ? 0 : size);
}

std::uint64_t PrefixIndex::hash_of(int parent, const PageName& name) const {
  std::uint64_t hash = parent == root ? mix(name.salt + 1) : nodes_[parent].hash;
  if (name.tokens.empty()) return mix(hash ^ mix(name.hash)) & hash_mask_;
  for (const int token : name.tokens) hash = (std::rotl(hash, 23) ^ static_cast<unsigned>(token)) * 0x9e3779b97f4a7c15u;
  return mix(hash) & hash_mask_;
}

int PrefixIndex::find(int parent, const PageName& name) const {
  if (!enabled()) return none;
  const std::uint64_t hash = hash_of(parent, name);
  for (int page = buckets_[hash % buckets_.size()]; page != none; page = nodes_[page].next_in_bucket) {
    const Node& node = nodes_[page];
    if (node.hash != hash || node.parent != parent || node.by_hash != name.tokens.empty()) continue;
    if (parent == root && node.salt != name.salt) continue;
    if (node.by_hash ? node.name_hash == name.hash : std::ranges::equal(tokens(page), name.tokens)) return page;
  }
  return none;
}

void PrefixIndex::add_to_bucket(int page) noexcept {
  Node& node          = nodes_[page];
  node.present        = true;
  node.next_in_bucket = std::exchange(bucket_of(node.hash), page);
  ++size_;
}

void PrefixIndex::insert(int parent, const PageName& name, int page) noexcept {
  nodes_[page] = {.hash      = hash_of(parent, name),
                  .salt      = name.salt,
                  .name_hash = name.hash,
                  .parent    = parent,
                  .blockers  = 1,
                  .by_hash   = name.tokens.empty()};
  std::ranges::copy(name.tokens, tokens_.begin() + static_cast<std::ptrdiff_t>(page) * page_size_);
  add_to_bucket(page);
  if (parent != root) hold(parent);
}

// A page that becomes blocked, or evictable, changes the number of blockers of its parent.
void PrefixIndex::hold(int page) noexcept {
  for (; page != root && nodes_[page].blockers++ == 0; page = nodes_[page].parent) remove_from_list(page);
}

void PrefixIndex::drop(int page) noexcept {
  for (; page != root && --nodes_[page].blockers == 0; page = nodes_[page].parent) {
    nodes_[page].before = nodes_[num_pages_].before;
    nodes_[page].after  = num_pages_;
    return_to_list(page);
  }
}

void PrefixIndex::undo_hold(int page) noexcept {
  Node& node = nodes_[page];
  if (--node.blockers > 0) return;
  return_to_list(page);
  if (node.parent != root) --nodes_[node.parent].blockers;
}

int PrefixIndex::evict() noexcept {
  const int page = nodes_[num_pages_].after;
  remove(page);
  return page;
}

void PrefixIndex::remove(int page) noexcept {
  Node& node = nodes_[page];
  remove_from_list(page);
  int* at = &bucket_of(node.hash);
  while (*at != page) at = &nodes_[*at].next_in_bucket;
  *at          = node.next_in_bucket;
  node.present = false;
  --size_;
}

void PrefixIndex::undo_evict(int page) noexcept {
  add_to_bucket(page);
  return_to_list(page);
}

// A page that leaves the list keeps its neighbours. If all later changes of the list are reverted, last first, its
// neighbours are adjacent again, and it returns between them.
void PrefixIndex::remove_from_list(int page) noexcept {
  const Node& node          = nodes_[page];
  nodes_[node.before].after = node.after;
  nodes_[node.after].before = node.before;
  --evictable_;
}

void PrefixIndex::return_to_list(int page) noexcept {
  const Node& node          = nodes_[page];
  nodes_[node.before].after = nodes_[node.after].before = page;
  ++evictable_;
}

}  // namespace pagoda::detail
