// SPDX-License-Identifier: Apache-2.0
// Calls of the page table that name sequences or find pages by their names.
#include "src/pool/page_table.hpp"

#include <pagoda/error.hpp>

#include <algorithm>

namespace pagoda::detail {

namespace {

int length_of(const Prompt& prompt) { return prompt.num_tokens + static_cast<int>(prompt.token_ids.size()); }

}  // namespace

void PageTable::check_prompt(const char* call, const Prompt& prompt) const {
  names_.check(call, prompt);
  const auto tokens = std::max<std::size_t>(prompt.token_ids.size(), prompt.num_tokens);
  require(tokens <= static_cast<std::size_t>(shape_.max_seq_len), shape_.owner, call, "prompt has ", tokens,
          " tokens; allowed: 0 to max_seq_len = ", shape_.max_seq_len);
}

int PageTable::match(const Prompt& prompt) const {
  check_prompt("::match: ", prompt);
  return names_.match(prompt).pages * shape_.page_size;
}

bool PageTable::can_admit(const Prompt& prompt) const {
  check_prompt("::can_admit: ", prompt);
  const auto found = names_.match(prompt);
  return free_slots() > 0 && pages_for(length_of(prompt)) - found.pages <= free_pages() - found.evictable;
}

int PageTable::admit(const Prompt& prompt, std::int64_t rows) {
  const char* const call = "::admit: ";
  forget_undo();
  check_prompt(call, prompt);
  check_free_slot(call);
  if (!shape_.contiguous) names_.enable();
  const auto found = names_.match(prompt);
  const int tokens = length_of(prompt), cached = found.pages * shape_.page_size;
  require(rows < 0 || (rows >= tokens - cached && rows <= tokens), shape_.owner, call, "k has ", rows,
          " tokens, the last of a prompt of ", tokens, "; allowed: ", tokens - cached, " to ", tokens,
          ", because the index has the first ", cached, " tokens (match says so; cached pages may have been evicted)");
  const int length = rows < 0 ? cached : tokens, pages = pages_for(length);
  if (pages - found.pages > free_pages() - found.evictable)
    throw too_few_pages(call, tokens, pages - found.pages, free_pages() - found.evictable);
  std::vector<int>& list = sequences_[free_slots_.next()].pages;
  list.reserve(pages);

  const int slot = free_slots_.take();
  remember(slot);
  // The pages found are held first, so that they are not evicted.
  list.resize(found.pages);
  names_.pages_of(found, list);
  for (const int page : list) share_page(page);
  if (!shape_.contiguous) names_.begin(slot, prompt, found);
  make_room(pages - found.pages);
  while (static_cast<int>(list.size()) < pages) list.push_back(take_page());
  begin(slot, length);
  return slot;
}

void PageTable::name_admitted(int slot, const Prompt& prompt, int cached) noexcept {
  const int pages = cached / shape_.page_size;
  names_.count(length_of(prompt), pages);
  if (shape_.contiguous || seq_len(slot) < length_of(prompt)) return;
  if (!prompt.token_ids.empty()) {
    names_.name(slot, prompt.token_ids.subspan(cached), this->pages(slot));
  } else {
    names_.name(slot, prompt.page_hashes.subspan(pages), this->pages(slot));
  }
}

void PageTable::name(int slot, std::span<const int> token_ids) {
  check_slot("::name: ", slot);
  if (shape_.contiguous) return;
  forget_undo();
  names_.enable();
  names_.check_name(slot, token_ids, pages(slot), seq_len(slot));
  names_.name(slot, token_ids, pages(slot));
}

void PageTable::name(int slot, std::span<const std::uint64_t> page_hashes) {
  check_slot("::name: ", slot);
  if (shape_.contiguous) return;
  forget_undo();
  names_.enable();
  names_.check_name(slot, page_hashes, pages(slot), seq_len(slot));
  names_.name(slot, page_hashes, pages(slot));
}

int PageTable::evict(int num_pages) {
  require(num_pages >= 0, shape_.owner, "::evict: num_pages is ", num_pages, "; allowed: 0 or more");
  forget_undo();
  const int count = std::min(num_pages, evictable_pages());
  make_room(free_pages_.size() + count);
  forget_undo();
  return count;
}

}  // namespace pagoda::detail
