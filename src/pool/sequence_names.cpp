// SPDX-License-Identifier: Apache-2.0
#include "src/pool/sequence_names.hpp"

#include <pagoda/error.hpp>

#include <algorithm>
#include <cstddef>
#include <utility>

namespace pagoda::detail {

SequenceNames::SequenceNames(std::string owner, int max_sequences, int num_pages, int page_size)
    : index(num_pages, page_size), owner_(std::move(owner)), max_sequences_(max_sequences), page_size_(page_size) {}

void SequenceNames::enable() {
  if (!names_.empty()) return;
  std::vector<Name> names(max_sequences_);
  std::vector<int> rests(static_cast<std::size_t>(max_sequences_) * page_size_);
  index.enable();
  names_.swap(names);
  rests_.swap(rests);
}

void SequenceNames::check(const char* call, const Prompt& prompt) const {
  const auto ids = prompt.token_ids;
  require(ids.empty() || (prompt.page_hashes.empty() && prompt.num_tokens == 0), owner_, call, "prompt has ",
          ids.size(), " token_ids, ", prompt.page_hashes.size(), " page_hashes and num_tokens = ", prompt.num_tokens,
          "; allowed: token_ids alone, or page_hashes and num_tokens");
  require(prompt.num_tokens >= 0, owner_, call, "prompt.num_tokens is ", prompt.num_tokens, "; allowed: 0 or more");
  const auto hashes = static_cast<std::size_t>(prompt.num_tokens / page_size_);
  require(prompt.page_hashes.size() == hashes, owner_, call, "prompt.page_hashes has ", prompt.page_hashes.size(),
          " entries; allowed: num_tokens / page_size = ", prompt.num_tokens, " / ", page_size_, " = ", hashes);
  const auto negative = std::ranges::find_if(ids, [](int id) { return id < 0; });
  require(negative == ids.end(), owner_, call, "prompt.token_ids[", negative - ids.begin(), "] is ",
          negative == ids.end() ? 0 : *negative, "; allowed: 0 or more");
}

PageName SequenceNames::page_name(const Prompt& prompt, int i) const {
  if (prompt.token_ids.empty()) return {.hash = prompt.page_hashes[i], .salt = prompt.salt};
  const auto first = static_cast<std::size_t>(i) * page_size_;
  return {.tokens = prompt.token_ids.subspan(first, page_size_), .salt = prompt.salt};
}

SequenceNames::Match SequenceNames::match(const Prompt& prompt) const {
  const int tokens = prompt.num_tokens + static_cast<int>(prompt.token_ids.size());
  Match match;
  for (const int most = std::max(tokens - 1, 0) / page_size_; match.pages < most; ++match.pages) {
    const int page = index.find(match.last, page_name(prompt, match.pages));
    if (page == PrefixIndex::none) break;
    match.last = page;
    match.evictable += index.is_evictable(page);
  }
  return match;
}

void SequenceNames::pages_of(const Match& match, std::span<int> pages) const noexcept {
  for (int i = match.pages - 1, page = match.last; i >= 0; --i, page = index.parent(page)) pages[i] = page;
}

void SequenceNames::begin(int slot, const Prompt& prompt, const Match& match) noexcept {
  names_[slot] = {.position = match.last, .pages = match.pages, .kind = kind_of(prompt), .salt = prompt.salt};
  index.hold(match.last);
}

void SequenceNames::fork(int slot, int child, int num_tokens) noexcept {
  if (names_.empty()) return;
  const Name& parent        = names_[slot];
  Name& name                = names_[child];
  name                      = parent;
  std::span<const int> rest = rest_of(slot);  // holds the ids of the child's rest
  for (; name.pages > num_tokens / page_size_; --name.pages) {
    rest          = index.tokens(name.position);
    name.rest     = static_cast<int>(rest.size());
    name.position = index.parent(name.position);
  }
  if (name.kind == Kind::tokens) name.rest = std::min(name.rest, num_tokens - name.pages * page_size_);
  std::copy_n(rest.begin(), name.rest, rest_of(child).begin());
  index.hold(name.position);
}

void SequenceNames::forget(int slot) noexcept {
  if (names_.empty()) return;
  index.drop(names_[slot].position);
  names_[slot] = {};
}

template <class NameOfPage>
void SequenceNames::check_pages(int slot, int count, const NameOfPage& name_of_page, std::span<const int> pages) const {
  int position = names_[slot].position;
  for (int i = 0; i < count; ++i) {
    const int page  = pages[names_[slot].pages + i];
    const int known = position == PrefixIndex::none ? position : index.find(position, name_of_page(i));
    require(known == page || !index.contains(page), owner_, "::name: page ", page, " of slot ", slot, " (tokens ",
            (names_[slot].pages + i) * page_size_,
            " and following) already has another name, which a sequence that "
            "shares the page gave it; allowed: the same name");
    position = known;
  }
}

void SequenceNames::check_name(int slot, std::span<const int> tokens, std::span<const int> pages, int length) {
  const Name& name = names_[slot];
  require(name.kind != Kind::hashes, owner_, "::name: slot ", slot,
          " gets token ids, but was named by hashes; allowed: hashes");
  const std::int64_t left = length - named(slot);
  require(static_cast<std::int64_t>(tokens.size()) <= left, owner_, "::name: token_ids has ", tokens.size(),
          " entries; allowed: up to ", left, ", as ", named(slot), " of the ", length, " tokens of slot ", slot,
          " are named");
  const auto negative = std::ranges::find_if(tokens, [](int id) { return id < 0; });
  require(negative == tokens.end(), owner_, "::name: token_ids[", negative - tokens.begin(), "] is ",
          negative == tokens.end() ? 0 : *negative, "; allowed: 0 or more");
  complete_rest(slot, tokens);
  check_pages(
      slot, (name.rest + static_cast<int>(tokens.size())) / page_size_,
      [&](int i) { return page_name(slot, tokens, i); }, pages);
}

void SequenceNames::check_name(int slot, std::span<const std::uint64_t> hashes, std::span<const int> pages,
                               int length) {
  const Name& name = names_[slot];
  require(name.kind != Kind::tokens, owner_, "::name: slot ", slot,
          " gets hashes, but was named by token ids; allowed: token ids");
  const int left = length / page_size_ - name.pages;
  require(hashes.size() <= static_cast<std::size_t>(left), owner_, "::name: page_hashes has ", hashes.size(),
          " entries; allowed: up to ", left, ", as ", name.pages, " of the ", length / page_size_,
          " full pages of slot ", slot, " are named");
  check_pages(slot, static_cast<int>(hashes.size()), [&](int i) { return page_name(slot, hashes, i); }, pages);
}

void SequenceNames::complete_rest(int slot, std::span<const int> tokens) noexcept {
  const auto free  = static_cast<std::size_t>(page_size_ - names_[slot].rest);
  const auto first = tokens.first(std::min(free, tokens.size()));
  std::ranges::copy(first, rest_of(slot).begin() + names_[slot].rest);
}

PageName SequenceNames::page_name(int slot, std::span<const int> tokens, int i) const {
  const Name& name = names_[slot];
  if (i == 0 && name.rest > 0) return {.tokens = rest_of(slot), .salt = name.salt};
  return {.tokens = tokens.subspan(static_cast<std::size_t>(i) * page_size_ - name.rest, page_size_),
          .salt   = name.salt};
}

PageName SequenceNames::page_name(int slot, std::span<const std::uint64_t> hashes, int i) const {
  return {.hash = hashes[i], .salt = names_[slot].salt};
}

void SequenceNames::add_page(int slot, const PageName& page_name, int page) noexcept {
  Name& name = names_[slot];
  int next   = index.find(name.position, page_name);
  if (next == PrefixIndex::none) index.insert(name.position, page_name, next = page);
  index.hold(next);
  index.drop(name.position);
  name.position = next;
  ++name.pages;
}

void SequenceNames::name(int slot, std::span<const int> tokens, std::span<const int> pages) noexcept {
  Name& name = names_[slot];
  if (tokens.empty()) return;
  complete_rest(slot, tokens);
  const int first = name.pages, count = (name.rest + static_cast<int>(tokens.size())) / page_size_;
  for (int i = 0; i < count; ++i) add_page(slot, page_name(slot, tokens, i), pages[first + i]);
  name.kind = Kind::tokens;
  name.rest += static_cast<int>(tokens.size()) - count * page_size_;
  if (count > 0) std::ranges::copy(tokens.last(name.rest), rest_of(slot).begin());
}

void SequenceNames::name(int slot, std::span<const std::uint64_t> hashes, std::span<const int> pages) noexcept {
  if (hashes.empty()) return;
  const int first = names_[slot].pages;
  for (int i = 0; i < static_cast<int>(hashes.size()); ++i)
    add_page(slot, page_name(slot, hashes, i), pages[first + i]);
  names_[slot].kind = Kind::hashes;
}

void SequenceNames::count(int num_tokens, int hit_pages) noexcept {
  const int hits = hit_pages * page_size_;
  ++stats.prompts;
  stats.hit_tokens += hits;
  stats.miss_tokens += num_tokens - hits;
  stats.hit_pages += hit_pages;
  stats.miss_pages += num_tokens / page_size_ - hit_pages;
}

}  // namespace pagoda::detail
