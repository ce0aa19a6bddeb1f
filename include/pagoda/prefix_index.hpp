// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

/// @file
/// The prefix index of a PagedPool: what callers say of a prompt, and what the index has saved.
///
/// The index is a tree of full pages. A page is found by its own tokens and by those of all pages before it, so a new
/// prompt shares the pages of the longest run that any earlier sequence has named. When the last sequence that holds a
/// page of the index is released, the page stays cached. Cached pages are evicted when other calls need pages: the page
/// released longest ago first, and never a page before those that follow it in the tree.
///
///   const pagoda::Prompt prompt{.token_ids = ids};
///   const int cached = pool.match(prompt);                  // compute keys and values of the tokens from here on
///   const int slot   = pool.admit(exec, prompt, k, v);      // k, v: rows of those tokens
///   pool.append(exec, slots, k_new, v_new);
///   pool.name(slot, new_ids);                               // optional: generated tokens enter the index too
///
/// Source: Kwon et al., PagedAttention, sections 4.3 and 4.4 (shared pages, copy on write); Zheng et al., SGLang,
/// section 3 (RadixAttention: a tree of prefixes, eviction of least recently used leaves).
namespace pagoda {

/// A prompt, named by its token ids, or by a hash for each of its full pages.
///
/// Token ids: the index stores the ids of each page and compares them, so a collision of hashes never shares a wrong
/// page. Hashes: two pages are the same if they and all pages before them have equal hashes. The caller answers for
/// hashes that identify the tokens of a page; hashes that are chained over the pages before may be given too. Pages
/// that are named by ids and pages that are named by hashes never match each other.
struct Prompt {
  std::span<const int> token_ids             = {};  ///< ids of all tokens, 0 or more
  std::span<const std::uint64_t> page_hashes = {};  ///< instead: num_tokens / page_size hashes
  int num_tokens                             = 0;   ///< with page_hashes: tokens of the prompt
  std::uint64_t salt = 0;  ///< prompts of different salts share nothing (an adapter, a tenant, the images of a prompt)
};

/// What the index has saved since the pool was made or reset_prefix_stats was called. A prompt counts when it is
/// admitted. Hits are its tokens whose pages were shared, and misses are all others, also the tokens of its last page,
/// which is not full.
struct PrefixStats {
  std::int64_t prompts       = 0;  ///< prompts that were admitted
  std::int64_t hit_tokens    = 0;  ///< tokens that were shared
  std::int64_t miss_tokens   = 0;  ///< tokens that had to be computed
  std::int64_t hit_pages     = 0;  ///< pages that were shared
  std::int64_t miss_pages    = 0;  ///< full pages that had to be computed
  std::int64_t saved_bytes   = 0;  ///< keys and values of the tokens that were shared
  std::int64_t evicted_pages = 0;  ///< pages that the index gave up
  int indexed_pages          = 0;  ///< pages in the index now, held by sequences or not; not reset

  bool operator==(const PrefixStats&) const = default;  ///< all counts are equal
  /// Fraction of the tokens of prompts that were shared; 0 before the first token.
  double hit_rate() const {
    const std::int64_t tokens = hit_tokens + miss_tokens;
    return tokens > 0 ? static_cast<double>(hit_tokens) / static_cast<double>(tokens) : 0.0;
  }
};

}  // namespace pagoda
