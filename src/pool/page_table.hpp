// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/error.hpp>
#include <pagoda/prefix_index.hpp>

#include "src/pool/sequence_names.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

/// The bookkeeping of a pool, on the host only: which pages each sequence holds.
namespace pagoda::detail {

/// `count` tokens that are consecutive at both the source and the destination, all in one page. Positions in a cache
/// are flat: page * page_size + offset.
struct TokenRun {
  std::int64_t from;
  std::int64_t to;
  int count;
};

/// Allocates the numbers 0 .. size-1. The number freed last is reused first, because its memory may still be in a
/// cache.
class FreeList {
 public:
  explicit FreeList(int size);
  int size() const { return static_cast<int>(free_.size()); }
  int next() const { return free_.back(); }
  int take();
  void give(int number) { free_.push_back(number); }
  /// The numbers that were given last, `count` of them, the last one last.
  std::span<const int> last(int count) const { return std::span(free_).last(count); }

 private:
  std::vector<int> free_;
};

/// Slots (sequences), the pages of each in order, the number of sequences that share each page, the names of sequences
/// with the index of their pages, and the rows of the device's copy of these tables that are out of date.
///
/// A page is held by sequences, or unused, or cached: the index keeps it, although no sequence holds it. Cached pages
/// are evicted when a call needs more than the unused pages, which happens before it takes any.
///
/// A contiguous cache has one page of max_seq_len tokens for each sequence, held from admission to release and never
/// shared. Slots and pages are then allocated and freed together, in the same order, so slot s always holds page s.
///
/// If a call throws, nothing has changed: each call first checks its arguments and reserves memory, and then cannot
/// fail. If the caller fails later, undo() reverts a call. Messages begin with Shape::owner and the call, and name the
/// argument.
/// Source: Kwon et al., PagedAttention, sections 4.2 to 4.4; Heidari et al., section III.C; Zheng et al., SGLang,
/// section 3.
class PageTable {
 public:
  struct Shape {
    std::string owner;  ///< "pagoda::PagedPool"
    int max_sequences, max_seq_len, page_size, num_pages;
    bool contiguous;
  };
  explicit PageTable(const Shape& shape);

  /// Takes a slot for a new sequence of num_tokens tokens. Its rows are written later.
  int admit(int num_tokens);
  /// Takes a slot for a new sequence that begins with the pages which match() finds for the prompt. rows: the number of
  /// last tokens of the prompt whose rows the caller has; the sequence is the whole prompt. rows < 0: it is only the
  /// pages found. The prompt's tokens beyond these have no names yet.
  int admit(const Prompt& prompt, std::int64_t rows);
  /// Tokens with which an admitted prompt would begin: whole pages, and never its last token.
  int match(const Prompt& prompt) const;
  bool can_admit(const Prompt& prompt) const;
  /// Throws InvalidArgument for a prompt that is not allowed.
  void check_prompt(const char* call, const Prompt& prompt) const;
  /// Names the rest of the sequence that was admitted as `prompt`, and counts the prompt, of whose tokens the first
  /// `cached` were found.
  void name_admitted(int slot, const Prompt& prompt, int cached) noexcept;
  /// Names the next tokens of a sequence, or its next full pages.
  void name(int slot, std::span<const int> token_ids);
  void name(int slot, std::span<const std::uint64_t> page_hashes);
  int named_tokens(int slot) const { return names_.named(slot); }
  bool is_indexed(int page) const { return names_.index.contains(page); }
  /// Evicts up to num_pages cached pages, and returns how many it evicted.
  int evict(int num_pages);
  /// indexed_pages and saved_bytes are not set.
  const PrefixStats& prefix_stats() const { return names_.stats; }
  void reset_prefix_stats() { names_.stats = {}; }
  int indexed_pages() const { return names_.index.size(); }

  /// Throws InvalidArgument unless each slot holds a sequence, occurs once, and has room for its count of tokens.
  void check_extend(const char* call, std::span<const int> slots, std::span<const int> counts);
  /// Lengthens each of `slots` by its count (counts empty: by one). If a sequence is about to write to a shared page,
  /// it gets its own copy of that page: the runs to copy are appended to `copies` and must be copied before the new
  /// tokens are written. A page of the index counts as shared.
  void extend(const char* call, std::span<const int> slots, std::span<const int> counts, std::vector<TokenRun>& copies);
  /// Takes a slot for a sequence that begins with the first num_tokens tokens of `slot`. It shares their pages, or gets
  /// copies if pages cannot be shared.
  int fork(int slot, int num_tokens, std::vector<TokenRun>& copies);
  /// Ends a sequence. Pages that no other sequence holds become cached if they are in the index, and else unused.
  void release(int slot);

  /// Throws InvalidArgument unless the slot holds a sequence.
  void check_slot(const char* call, int slot) const;
  bool holds(int slot) const { return slot >= 0 && slot < shape_.max_sequences && sequences_[slot].length >= 0; }
  int seq_len(int slot) const { return sequences_[slot].length; }
  std::span<const int> pages(int slot) const { return sequences_[slot].pages; }
  /// Sequences that hold this page.
  int ref_count(int page) const { return refs_[page]; }
  /// Position of token t of a sequence.
  std::int64_t position(int slot, int t) const {
    return std::int64_t(sequences_[slot].pages[t / shape_.page_size]) * shape_.page_size + t % shape_.page_size;
  }
  /// Appends the runs that copy rows `from` .. `from + count` to tokens first .. first + count of a sequence.
  void add_runs(int slot, int first, int count, std::int64_t from, std::vector<TokenRun>& runs) const;

  const Shape& shape() const { return shape_; }
  int pages_for(int num_tokens) const;
  int free_slots() const { return free_slots_.size(); }
  /// Pages that a call can take: unused ones, and cached ones that can be evicted.
  int free_pages() const { return free_pages_.size() + evictable_pages(); }
  int evictable_pages() const { return names_.index.evictable(); }
  /// Pages that sequences hold.
  int used_pages() const { return used_pages_; }
  /// Sum of the lengths of all sequences.
  std::int64_t tokens_held() const { return tokens_held_; }
  /// Rows in use. A token in a page that several sequences share counts once. Takes time in the number of pages.
  std::int64_t tokens_stored() const;
  bool can_admit(int num_tokens) const;
  /// Calls of release() so far. While it stays the same, sequences only grow, and their full pages stay.
  std::int64_t releases() const { return releases_; }

  /// Calls length(slot, tokens), page(slot, column, page) and clear(slot, column, count) for all differences from the
  /// device's copy, which has the state of the last call of mark_synced(). clear: columns beyond the sequence, to
  /// become -1.
  template <class Length, class Page, class Clear>
  void for_changes(const Length& length, const Page& page, const Clear& clear) const;
  /// The device's copy is up to date.
  void mark_synced() noexcept;
  /// Reverts the last admit, extend or fork. Does nothing if mark_synced(), release(), name(), evict() or undo() was
  /// called since. overwritten: pages that the call evicted may hold other rows now, and so stay evicted.
  void undo(bool overwritten = false) noexcept;

 private:
  struct Sequence {
    int length = -1;  ///< -1: the slot is free
    std::vector<int> pages;
    // The device's copy: its length, its columns that are not -1, and how many of these are up to date.
    int device_length = 0, device_columns = 0, clean_columns = 0;
    bool changed = false;
  };

  /// State of a sequence before the last call.
  struct Before {
    int slot, length, columns, clean_columns;
    int copied_page;  ///< page that the sequence's copy of its last page replaced; -1: none
    bool changed;
  };

  void remember(int slot, int copied_page = -1);
  int take_page();
  void share_page(int page);
  void drop_page(int page);
  /// Evicts pages until `pages` of them are unused. free_pages() must be at least `pages`.
  void make_room(int pages);
  void undo_evictions() noexcept;
  void forget_undo() noexcept;
  void note_change(int slot);
  void begin(int slot, int num_tokens);
  void check_free_slot(const char* call) const;
  bool in_partial_shared_page(const Sequence& s) const;
  OutOfCapacity too_few_pages(const char* call, int num_tokens, int pages, int free) const;

  Shape shape_;
  std::vector<Sequence> sequences_;
  std::vector<int> refs_;  ///< [num_pages]
  FreeList free_slots_, free_pages_;
  SequenceNames names_;
  int used_pages_           = 0;
  int evicted_              = 0;  ///< pages that the last call evicted; each was given to free_pages_
  std::int64_t tokens_held_ = 0;
  std::int64_t releases_    = 0;
  std::vector<int> changed_;             ///< slots that differ from the device's copy
  std::vector<Before> undo_;             ///< sequences before the last call, in its order
  std::int64_t mention_ = 0;             ///< number of calls of extend
  std::vector<std::int64_t> mentioned_;  ///< [max_sequences] the call that named the slot last
  std::vector<int> copied_;              ///< scratch of extend
};

template <class Length, class Page, class Clear>
void PageTable::for_changes(const Length& length, const Page& page, const Clear& clear) const {
  for (const int slot : changed_) {
    const Sequence& s = sequences_[slot];
    const int now = s.length < 0 ? 0 : s.length, columns = static_cast<int>(s.pages.size());
    if (now != s.device_length) length(slot, now);
    for (int i = s.clean_columns; i < columns; ++i) page(slot, i, s.pages[i]);
    if (columns < s.device_columns) clear(slot, columns, s.device_columns - columns);
  }
}

}  // namespace pagoda::detail
