// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

/// Lists of entries. A list says which tokens a kernel reads for which query tokens. A planner writes the list once,
/// and kernels only execute it. The same list expresses a forest of shared prefixes, one prompt shared by a whole
/// batch, the range of a long context that one rank holds, and pages chosen for each sequence.
namespace pagoda {

/// Tokens first to last - 1 of a sequence, read once for a run of query tokens. The query tokens may belong to other
/// sequences that have the same pages in this range.
///
/// The kernel splits entries over teams from the lengths when it runs. So a list stays valid while sequences grow, and
/// a captured graph may replay it.
struct Entry {
  int sequence;     ///< whose pages are read: the first query token's sequence (an index into seq_lens)
  int first;        ///< first token: a multiple of the page size
  int last;         ///< one past the last token; negative: the sequence's length when the kernel runs
  int query_begin;  ///< first of its query tokens in EntryList::queries
  int num_queries;  ///< at least 1, and at most EntryList::max_queries
  /// Index of the partial state that this entry writes for each of its query tokens: 0, 1, ... in the order of `first`.
  /// Negative: its query tokens have no other entry, so the result is written to the output.
  int state;
};

/// A query token. Its position in its own sequence is seq_len(sequence) - behind.
struct EntryQuery {
  int token;     ///< row of q
  int sequence;  ///< sequence to which it belongs
  int behind;    ///< 1 for the newest token of the sequence
};

/// A list of entries. `queries` contains every query token once. Entries refer to runs of `queries`, and several
/// entries may refer to the same query token.
///
/// Query token t has n = state_begin[t + 1] - state_begin[t] partial states: n is 0 (its entry writes the output) or at
/// least 2. The entry with Entry::state == i writes partial state state_begin[t] + i, for each query head. Merging the
/// n states of a token in order gives its output; the merge adds attention sinks, once.
struct EntryList {
  std::vector<Entry> entries;
  std::vector<EntryQuery> queries;
  std::vector<int> state_begin;  ///< [query tokens + 1]
  int max_queries = 0;           ///< bound on the query tokens of an entry

  /// Partial states of all query tokens. Each has num_q_heads rows.
  int num_states() const { return state_begin.empty() ? 0 : state_begin.back(); }
  void clear() {
    entries.clear(), queries.clear(), state_begin.clear();
    max_queries = 0;
  }
};

}  // namespace pagoda
