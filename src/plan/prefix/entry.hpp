// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

/// Lists of entries: which tokens a kernel reads for which query tokens. A planner writes such a list once; kernels
/// only carry it out. The same list expresses a forest of shared prefixes, one prompt shared by a whole batch, the
/// range of a long context that one rank holds, and pages chosen for each sequence.
namespace pagoda {

/// Tokens first to last - 1 of a sequence, read once for a run of query tokens. The query tokens may belong to other
/// sequences, whose pages in this range are the same.
///
/// The kernel splits entries over teams from the lengths as they are when it runs. So a list stays right while
/// sequences grow, and a captured graph may replay it.
struct Entry {
  int sequence;     ///< whose pages are read: the first query token's (an index into seq_lens, not a batch entry)
  int first;        ///< first token: a multiple of the page size
  int last;         ///< one past the last token; negative: the sequence's length when the kernel runs
  int query_begin;  ///< first of its query tokens in EntryList::queries
  int num_queries;  ///< at least 1, and at most EntryList::max_queries
  /// Which of the partial states of each of its query tokens this entry writes: 0, 1, ... in the order of `first`.
  /// Negative: its query tokens have no other entry, so the result goes to the output.
  int state;
};

/// A query token. Its position in its own sequence is seq_len(sequence) - behind.
struct EntryQuery {
  int token;     ///< row of q
  int sequence;  ///< to which it belongs
  int behind;    ///< 1 for the newest token of the sequence
};

/// A list of entries. Every query token stands in `queries` once; entries refer to runs of `queries`, and several
/// entries may refer to the same query.
///
/// Query token t has n = state_begin[t + 1] - state_begin[t] partial states: 0 (its entry writes the output) or at
/// least
/// 2. The entry with Entry::state == i writes partial state state_begin[t] + i, for each query head. Merging the n
/// states of a token in order gives its output; attention sinks are added there, once.
struct EntryList {
  std::vector<Entry> entries;
  std::vector<EntryQuery> queries;
  std::vector<int> state_begin;  ///< [query tokens + 1]
  int max_queries = 0;           ///< of one entry

  /// Partial states of all query tokens. Each has num_q_heads rows.
  int num_states() const { return state_begin.empty() ? 0 : state_begin.back(); }
  void clear() {
    entries.clear(), queries.clear(), state_begin.clear();
    max_queries = 0;
  }
};

}  // namespace pagoda
