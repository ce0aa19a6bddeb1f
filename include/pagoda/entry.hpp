// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

/// @file
/// Lists of entries. A list says which tokens a decode reads for which query tokens. Plain decodes have one entry for
/// each sequence; a list can also express
///  - prefixes that sequences share, each read once for all of their query tokens;
///  - trees of draft tokens (speculative decoding), with a mask for each query token;
///  - pages chosen for each sequence and kv head (sparse decode);
///  - the range of a long context that one rank holds.
///
/// The library makes lists of shared prefixes (PrefixPlanner). Callers, and kernels of theirs, can make any list. This
/// header needs neither Kokkos nor CUDA.
namespace pagoda {

/// Tokens first to last - 1 of a sequence, read once for a run of query tokens. The query tokens may belong to other
/// sequences that have the same pages in this range.
///
/// The kernel splits entries over teams from the lengths when it runs. So a list stays valid while sequences grow, and
/// a captured graph may replay it.
///
/// A chain is a run of entries that are carried out one after the other and write one result: one partial state, or the
/// output, for each query token of the chain.
///  - The first entry has all query tokens of the chain, and `last` >= 0. It may have no tokens: first == last == 0.
///  - The query tokens of each other entry, at least one, are a run within that of the first entry. A query token may
///    be in several entries: those of a node, of a node behind it and of its own sequence.
///  - All entries have the same `state` and the same `kv_head`.
///  - A query token sees all tokens of each entry of the chain that it is in: its `behind` is 1, and it has no mask.
struct alignas(16) Entry {
  int sequence;     ///< whose pages are read: an index into seq_lens and a row of the block table
  int first;        ///< first token: a multiple of the page size; in a contiguous cache any token
  int last;         ///< one past the last token; negative: the sequence's length when the kernel runs
  int query_begin;  ///< first of its query tokens in the list's queries
  int num_queries;  ///< number of its query tokens; 0: the entry is skipped
  /// Index of the partial state that this entry writes for each of its query tokens: 0, 1, ... in the order of `first`.
  /// Entries of a chain have the same index. Negative: its query tokens have no other entry (for these heads), or none
  /// beside its chain, so the result is written to the output.
  int state;
  int kv_head = -1;  ///< the only kv head that is read, for its query heads; negative: all kv heads
  /// 0: the entry stands alone. n > 0: it begins a chain: this entry and the next n of the list. -k: it is the k-th
  /// entry behind the first one of its chain.
  int chain = 0;
};

/// A query token.
///
/// Without a mask it stands at position seq_len(sequence) - behind of its sequence. In an entry with last < 0 of its
/// own sequence, a causal decode hides the `behind` - 1 newest tokens from it. Entries with last >= 0 hide nothing:
/// every query token sees all of their tokens.
///
/// With a mask, the newest `behind` tokens of the entry (at most 128) are drafts, and bit j of the mask (bit j % 64 of
/// word mask + j / 64) says whether the query token sees token seq_len(sequence) - behind + j. It sees all older ones.
struct alignas(16) EntryQuery {
  int token;      ///< row of q
  int sequence;   ///< sequence to which it belongs
  int behind;     ///< 1 for the newest token of the sequence; with a mask: number of tokens that the mask covers
  int mask = -1;  ///< index of the first of its two words in the list's masks; negative: no mask
};

/// A list of entries on the host. `queries` contains every query token once or more. Entries refer to runs of
/// `queries`, and several entries may refer to the same query token.
///
/// Query token t has n = state_begin[t + 1] - state_begin[t] partial states: n is 0 (its entries write the output) or
/// at least 1. The entry, or the chain, with Entry::state == i writes partial state state_begin[t] + i, for each of its
/// query heads. Merging the n states of a token in order gives its output; the merge adds attention sinks, once.
struct EntryList {
  std::vector<Entry> entries;        ///< what is read, and for which runs of `queries`
  std::vector<EntryQuery> queries;   ///< query tokens
  std::vector<int> state_begin;      ///< [query tokens + 1]; empty: there are no partial states
  std::vector<std::uint64_t> masks;  ///< two words for each query token with a mask
  int max_queries = 0;               ///< bound on the query tokens of an entry

  /// Partial states of all query tokens. Each has num_q_heads rows.
  int num_states() const { return state_begin.empty() ? 0 : state_begin.back(); }
  /// Makes the list empty, without freeing memory.
  void clear() {
    entries.clear(), queries.clear(), state_begin.clear(), masks.clear();
    max_queries = 0;
  }
};

}  // namespace pagoda
