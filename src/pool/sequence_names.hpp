// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/prefix_index.hpp>

#include "src/pool/prefix_index.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace pagoda::detail {

/// The names of the sequences of a pool, and the index of their pages. A sequence is named from its first token on, as
/// far as its caller names it. Its position in the index is the page of the index that has the name of its last full
/// named page. The position has a hold, so that the sequence can be named further. It is usually a page of the sequence
/// itself, unless another sequence named its page first.
///
/// Calls that are noexcept need enable() first. Messages begin with `owner` and the call.
class SequenceNames {
 public:
  SequenceNames(std::string owner, int max_sequences, int num_pages, int page_size);
  /// Allocates everything, unless that is done.
  void enable();

  /// The longest run of pages of the index with which a prompt begins.
  struct Match {
    int pages     = 0;
    int last      = PrefixIndex::root;  ///< the last of them
    int evictable = 0;                  ///< those that count as evictable
  };
  /// Throws InvalidArgument for a prompt that is not allowed.
  void check(const char* call, const Prompt& prompt) const;
  /// At most the pages before the last token, whose output the caller needs.
  Match match(const Prompt& prompt) const;
  /// The pages of a match, first to last, into pages[0 .. match.pages).
  void pages_of(const Match& match, std::span<int> pages) const noexcept;

  /// A new sequence begins with the pages of a match, or with the first num_tokens tokens of another sequence. Any
  /// other has no name.
  void begin(int slot, const Prompt& prompt, const Match& match) noexcept;
  void fork(int slot, int child, int num_tokens) noexcept;
  /// The sequence ends.
  void forget(int slot) noexcept;

  /// Throws InvalidArgument unless the next tokens, or full pages, of a sequence may get these names. pages: of the
  /// sequence, whose length is `length`.
  void check_name(int slot, std::span<const int> tokens, std::span<const int> pages, int length);
  void check_name(int slot, std::span<const std::uint64_t> hashes, std::span<const int> pages, int length);
  /// Names the next tokens, or full pages, of a sequence. Pages that become full enter the index, unless it has a page
  /// of that name.
  void name(int slot, std::span<const int> tokens, std::span<const int> pages) noexcept;
  void name(int slot, std::span<const std::uint64_t> hashes, std::span<const int> pages) noexcept;

  /// Number of tokens of a sequence that are named.
  int named(int slot) const { return names_.empty() ? 0 : names_[slot].pages * page_size_ + names_[slot].rest; }
  /// Counts an admitted prompt of num_tokens tokens.
  void count(int num_tokens, int hit_pages) noexcept;

  PrefixIndex index;
  PrefixStats stats;

 private:
  enum class Kind : std::uint8_t { unnamed, tokens, hashes };
  struct Name {
    int position       = PrefixIndex::root;
    int pages          = 0;  ///< full pages that are named
    int rest           = 0;  ///< token ids beyond these
    Kind kind          = Kind::unnamed;
    std::uint64_t salt = 0;
  };

  static Kind kind_of(const Prompt& prompt) {
    return !prompt.token_ids.empty() ? Kind::tokens : prompt.num_tokens > 0 ? Kind::hashes : Kind::unnamed;
  }
  PageName page_name(const Prompt& prompt, int i) const;
  // Name of the i-th page that the next tokens, or hashes, of a sequence complete. complete_rest comes first.
  PageName page_name(int slot, std::span<const int> tokens, int i) const;
  PageName page_name(int slot, std::span<const std::uint64_t> hashes, int i) const;
  /// Writes the next tokens behind the rest, as far as they complete its page.
  void complete_rest(int slot, std::span<const int> tokens) noexcept;
  template <class NameOfPage>
  void check_pages(int slot, int count, const NameOfPage& name_of_page, std::span<const int> pages) const;
  void add_page(int slot, const PageName& page_name, int page) noexcept;
  std::span<int> rest_of(int slot) {
    return std::span(rests_).subspan(static_cast<std::size_t>(slot) * page_size_, page_size_);
  }
  std::span<const int> rest_of(int slot) const {
    return std::span(rests_).subspan(static_cast<std::size_t>(slot) * page_size_, page_size_);
  }

  std::string owner_;
  int max_sequences_, page_size_;
  std::vector<Name> names_;  ///< [max_sequences]
  std::vector<int> rests_;   ///< [max_sequences, page_size] token ids beyond the full named pages
};

}  // namespace pagoda::detail
