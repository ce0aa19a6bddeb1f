// SPDX-License-Identifier: Apache-2.0
#include "src/pool/page_table.hpp"

#include <pagoda/error.hpp>

#include <algorithm>

namespace pagoda::detail {

namespace {

/// Longest run. One team copies a run, so this limit gives a long prompt enough runs to fill a device.
constexpr int max_run = 16;

void add_run(std::int64_t from, std::int64_t to, int count, std::vector<TokenRun>& runs) {
  for (int done = 0; done < count; done += max_run)
    runs.push_back({from + done, to + done, std::min(max_run, count - done)});
}

std::size_t runs_for(int count) { return static_cast<std::size_t>((count + max_run - 1) / max_run); }

}  // namespace

FreeList::FreeList(int size) : free_(size) {
  for (int i = 0; i < size; ++i) free_[i] = size - 1 - i;
}

int FreeList::take() {
  const int number = free_.back();
  free_.pop_back();
  return number;
}

PageTable::PageTable(const Shape& shape)
    : shape_(shape),
      sequences_(shape.max_sequences),
      refs_(shape.num_pages, 0),
      free_slots_(shape.max_sequences),
      free_pages_(shape.num_pages),
      names_(shape.owner, shape.max_sequences, shape.num_pages, shape.page_size),
      mentioned_(shape.max_sequences, 0) {
  changed_.reserve(shape.max_sequences);
  undo_.reserve(shape.max_sequences);
  copied_.reserve(shape.max_sequences);
}

int PageTable::pages_for(int num_tokens) const {
  if (shape_.contiguous) return 1;
  return num_tokens / shape_.page_size + (num_tokens % shape_.page_size != 0);
}

int PageTable::take_page() {
  const int page = free_pages_.take();
  refs_[page]    = 1;
  ++used_pages_;
  return page;
}

void PageTable::share_page(int page) {
  if (refs_[page]++ > 0) return;
  ++used_pages_;
  names_.index.hold(page);
}

void PageTable::drop_page(int page) {
  if (--refs_[page] > 0) return;
  --used_pages_;
  if (is_indexed(page)) {
    names_.index.drop(page);
  } else {
    free_pages_.give(page);
  }
}

void PageTable::make_room(int pages) {
  for (; free_pages_.size() < pages; ++evicted_, ++names_.stats.evicted_pages) free_pages_.give(names_.index.evict());
}

void PageTable::forget_undo() noexcept {
  undo_.clear();
  evicted_ = 0;
}

void PageTable::remember(int slot, int copied_page) {
  const Sequence& s = sequences_[slot];
  undo_.push_back({slot, s.length, static_cast<int>(s.pages.size()), s.clean_columns, copied_page, s.changed});
}

void PageTable::undo(bool overwritten) noexcept {
  // Backwards, so that the free lists and the order of eviction become what they were.
  const int evicted = evicted_;
  for (; !undo_.empty(); undo_.pop_back()) {
    const Before& before = undo_.back();
    Sequence& s          = sequences_[before.slot];
    if (before.length < 0) names_.forget(before.slot);
    for (; static_cast<int>(s.pages.size()) > before.columns; s.pages.pop_back()) {
      const int page = s.pages.back();
      if (refs_[page] == 1 && is_indexed(page)) {
        // The index reverts the last change first: the call evicted after it had shared the pages it found, which are
        // its first pages.
        undo_evictions();
        refs_[page] = 0;
        --used_pages_;
        names_.index.undo_hold(page);
      } else {
        drop_page(page);
      }
    }
    if (before.copied_page >= 0) {
      drop_page(s.pages.back());
      s.pages.back() = before.copied_page;
      share_page(before.copied_page);
    }
    tokens_held_ -= s.length - std::max(before.length, 0);
    s.length        = before.length;
    s.clean_columns = before.clean_columns;
    if (before.length < 0) free_slots_.give(before.slot);
    if (!before.changed) {
      s.changed = false;
      changed_.pop_back();
    }
  }
  undo_evictions();
  if (overwritten) {
    for (const int page : free_pages_.last(evicted)) names_.index.remove(page);
  } else {
    for (int i = 0; i < evicted; ++i) free_pages_.take();
    names_.stats.evicted_pages -= evicted;
  }
}

// Returns the pages to the index. undo has given back all pages that the call took, so the evicted ones are the last of
// the free list, where they stay for now.
void PageTable::undo_evictions() noexcept {
  const auto pages = free_pages_.last(evicted_);
  for (auto page = pages.rbegin(); page != pages.rend(); ++page) names_.index.undo_evict(*page);
  evicted_ = 0;
}

void PageTable::mark_synced() noexcept {
  for (const int slot : changed_) {
    Sequence& s      = sequences_[slot];
    s.device_length  = std::max(s.length, 0);
    s.device_columns = s.clean_columns = static_cast<int>(s.pages.size());
    s.changed                          = false;
  }
  changed_.clear();
  forget_undo();
}

void PageTable::note_change(int slot) {
  if (sequences_[slot].changed) return;
  sequences_[slot].changed = true;
  changed_.push_back(slot);
}

void PageTable::check_slot(const char* call, int slot) const {
  require(slot >= 0 && slot < shape_.max_sequences, shape_.owner, call, "slot is ", slot, "; allowed: 0 to ",
          shape_.max_sequences - 1);
  require(sequences_[slot].length >= 0, shape_.owner, call, "slot is ", slot,
          ", which holds no sequence (never admitted, or released); allowed: a slot that admit or fork returned");
}

void PageTable::check_free_slot(const char* call) const {
  if (free_slots() == 0)
    throw OutOfCapacity(concat(shape_.owner, call, "all slots are taken (max_sequences = ", shape_.max_sequences,
                               "); release a sequence first"));
}

int PageTable::admit(int num_tokens) {
  const char* const call = "::admit: ";
  forget_undo();
  require(num_tokens >= 0 && num_tokens <= shape_.max_seq_len, shape_.owner, call, "num_tokens is ", num_tokens,
          "; allowed: 0 to max_seq_len = ", shape_.max_seq_len);
  check_free_slot(call);
  const int pages = pages_for(num_tokens);
  if (pages > free_pages()) throw too_few_pages(call, num_tokens, pages, free_pages());
  sequences_[free_slots_.next()].pages.reserve(pages);

  make_room(pages);
  const int slot = free_slots_.take();
  Sequence& s    = sequences_[slot];
  remember(slot);
  for (int i = 0; i < pages; ++i) s.pages.push_back(take_page());
  begin(slot, num_tokens);
  return slot;
}

OutOfCapacity PageTable::too_few_pages(const char* call, int num_tokens, int pages, int free) const {
  return OutOfCapacity(concat(shape_.owner, call, "num_tokens = ", num_tokens, " takes ", pages, " pages of ",
                              shape_.page_size, " tokens; free: ", free, " of ", shape_.num_pages));
}

void PageTable::begin(int slot, int num_tokens) {
  sequences_[slot].length = num_tokens;
  tokens_held_ += num_tokens;
  note_change(slot);
}

bool PageTable::in_partial_shared_page(const Sequence& s) const {
  if (s.length % shape_.page_size == 0) return false;
  const int page = s.pages[s.length / shape_.page_size];
  return refs_[page] > 1 || is_indexed(page);
}

void PageTable::check_extend(const char* call, std::span<const int> slots, std::span<const int> counts) {
  require(counts.empty() || counts.size() == slots.size(), shape_.owner, call, "counts has ", counts.size(),
          " entries; allowed: as many as slots, ", slots.size());
  ++mention_;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const int slot = slots[i];
    require(holds(slot), shape_.owner, call, "slots[", i, "] is ", slot,
            ", which holds no sequence; allowed: a slot that admit or fork returned");
    require(mentioned_[slot] != mention_, shape_.owner, call, "slots[", i, "] is ", slot,
            ", which stands earlier in slots too; allowed: each slot once");
    mentioned_[slot]          = mention_;
    const std::int64_t length = sequences_[slot].length;
    const int count           = counts.empty() ? 1 : counts[i];
    require(count >= 0 && length + count <= shape_.max_seq_len, shape_.owner, call, "counts[", i, "] is ", count,
            " for slot ", slot, " of seq_len ", length,
            "; allowed: 0 to max_seq_len - seq_len = ", shape_.max_seq_len - length);
  }
}

void PageTable::extend(const char* call, std::span<const int> slots, std::span<const int> counts,
                       std::vector<TokenRun>& copies) {
  forget_undo();
  check_extend(call, slots, counts);
  const auto count_of = [&](std::size_t i) { return counts.empty() ? 1 : counts[i]; };

  // Pages to take. The first of several sharers to write gets a page of its own. The last keeps the old one, unless it
  // is in the index.
  std::int64_t pages    = 0;
  std::size_t copy_runs = 0;
  copied_.clear();
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const Sequence& s = sequences_[slots[i]];
    if (count_of(i) == 0) continue;
    pages += pages_for(s.length + count_of(i)) - static_cast<int>(s.pages.size());
    if (!in_partial_shared_page(s)) continue;
    const int page = s.pages[s.length / shape_.page_size];
    --refs_[page];
    copied_.push_back(page);
    copy_runs += runs_for(s.length % shape_.page_size);
    ++pages;
  }
  for (const int page : copied_) ++refs_[page];
  if (pages > free_pages())
    throw OutOfCapacity(concat(shape_.owner, call, "lengthening these ", slots.size(), " sequences takes ", pages,
                               " pages of ", shape_.page_size, " tokens; free: ", free_pages(), " of ",
                               shape_.num_pages));
  for (std::size_t i = 0; i < slots.size(); ++i) {
    Sequence& s        = sequences_[slots[i]];
    const auto columns = static_cast<std::size_t>(pages_for(s.length + count_of(i)));
    if (columns > s.pages.capacity()) s.pages.reserve(std::max(columns, 2 * s.pages.capacity()));
  }
  copies.reserve(copies.size() + copy_runs);

  make_room(static_cast<int>(pages));
  for (std::size_t i = 0; i < slots.size(); ++i) {
    Sequence& s = sequences_[slots[i]];
    if (count_of(i) == 0) continue;
    const bool copied = in_partial_shared_page(s);
    remember(slots[i], copied ? s.pages.back() : -1);
    if (copied) {
      const int column = s.length / shape_.page_size, old = s.pages[column], own = take_page();
      add_run(std::int64_t(old) * shape_.page_size, std::int64_t(own) * shape_.page_size, s.length % shape_.page_size,
              copies);
      drop_page(old);
      s.pages[column] = own;
      s.clean_columns = std::min(s.clean_columns, column);
    }
    s.length += count_of(i);
    tokens_held_ += count_of(i);
    const int columns = pages_for(s.length);
    while (static_cast<int>(s.pages.size()) < columns) s.pages.push_back(take_page());
    note_change(slots[i]);
  }
}

int PageTable::fork(int slot, int num_tokens, std::vector<TokenRun>& copies) {
  const char* const call = "::fork: ";
  forget_undo();
  check_slot(call, slot);
  const Sequence& parent = sequences_[slot];
  require(num_tokens >= 0 && num_tokens <= parent.length, shape_.owner, call, "num_tokens is ", num_tokens,
          "; allowed: 0 to the seq_len of slot ", slot, ", ", parent.length);
  check_free_slot(call);
  if (shape_.contiguous) {
    copies.reserve(copies.size() + runs_for(num_tokens));
    const int child = admit(num_tokens);
    add_run(position(slot, 0), position(child, 0), num_tokens, copies);
    return child;
  }

  const int pages = pages_for(num_tokens);
  sequences_[free_slots_.next()].pages.reserve(pages);
  const int child = free_slots_.take();
  Sequence& s     = sequences_[child];
  remember(child);
  s.pages.assign(parent.pages.begin(), parent.pages.begin() + pages);
  for (const int page : s.pages) ++refs_[page];
  names_.fork(slot, child, num_tokens);
  begin(child, num_tokens);
  return child;
}

void PageTable::release(int slot) {
  check_slot("::release: ", slot);
  forget_undo();
  names_.forget(slot);
  ++releases_;
  Sequence& s = sequences_[slot];
  for (auto page = s.pages.rbegin(); page != s.pages.rend(); ++page) drop_page(*page);
  s.pages.clear();
  s.clean_columns = 0;
  tokens_held_ -= s.length;
  s.length = -1;
  free_slots_.give(slot);
  note_change(slot);
}

void PageTable::add_runs(int slot, int first, int count, std::int64_t from, std::vector<TokenRun>& runs) const {
  for (int done = 0; done < count;) {
    const int t = first + done, n = std::min(count - done, shape_.page_size - t % shape_.page_size);
    add_run(from + done, position(slot, t), n, runs);
    done += n;
  }
}

std::int64_t PageTable::tokens_stored() const {
  // The largest number of tokens that any sequence counts in the page.
  std::vector<int> fill(shape_.num_pages, 0);
  for (const Sequence& s : sequences_)
    for (int i = 0; i < static_cast<int>(s.pages.size()); ++i)
      fill[s.pages[i]] = std::max(fill[s.pages[i]], std::min(shape_.page_size, s.length - i * shape_.page_size));
  std::int64_t tokens = 0;
  for (const int n : fill) tokens += n;
  return tokens;
}

bool PageTable::can_admit(int num_tokens) const {
  return num_tokens >= 0 && num_tokens <= shape_.max_seq_len && free_slots() > 0 &&
         pages_for(num_tokens) <= free_pages();
}

}  // namespace pagoda::detail
