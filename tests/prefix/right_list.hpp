// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/entry.hpp>

#include <pagoda/batch_pages.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace pagoda::test {

/// Examines a list by what every list must be, told from the tables alone.
class ListExaminer {
 public:
  ListExaminer(const BatchPages& pages, const EntryList& list)
      : p_(pages), list_(list), tokens_(pages.query_tokens()), owner_(static_cast<std::size_t>(tokens_)) {
    for (int b = 0; b < p_.batch; ++b)
      for (int i = 0; i < p_.num_queries(b); ++i) owner_[p_.query_begin(b) + i] = b;
  }
  /// Returns the first fault as a failure.
  testing::AssertionResult examine() {
    if (static_cast<int>(list_.queries.size()) != tokens_) return fault() << list_.queries.size() << " queries";
    if (static_cast<int>(list_.state_begin.size()) != tokens_ + 1 || list_.state_begin[0] != 0)
      return fault() << "state_begin has " << list_.state_begin.size() << " elements";
    if (auto result = queries(); !result) return result;
    parts_of_.resize(static_cast<std::size_t>(tokens_));
    int most = 0;
    for (int i = 0; i < static_cast<int>(list_.entries.size()); ++i) {
      if (auto result = range(i); !result) return result << " in entry " << i;
      most = std::max(most, list_.entries[i].num_queries);
    }
    if (list_.max_queries != most) return fault() << "max_queries is " << list_.max_queries << ", not " << most;
    for (int i = 0, part = 0; i < static_cast<int>(list_.entries.size()); ++part) {
      const int chain = list_.entries[i].chain;
      if (auto result = entries_of_part(i, chain, part); !result) return result << " in the chain of entry " << i;
      i += 1 + chain;
    }
    for (int t = 0; t < tokens_; ++t)
      if (auto result = path(t); !result) return result << " of query token " << t;
    return testing::AssertionSuccess();
  }

 private:
  struct Part {
    const Entry* entry;
    int part;  ///< number of the chain, or of the entry that stands alone
  };
  static testing::AssertionResult fault() { return testing::AssertionFailure(); }
  const EntryQuery& query(int i) const { return list_.queries[i]; }

  /// The queries are the batch's query tokens, each once.
  testing::AssertionResult queries() const {
    std::set<int> seen;
    for (const EntryQuery& q : list_.queries) {
      if (q.token < 0 || q.token >= tokens_ || !seen.insert(q.token).second)
        return fault() << "query token " << q.token;
      const int b = owner_[q.token];
      if (q.sequence != p_.sequence(b) || q.behind != p_.num_queries(b) - (q.token - p_.query_begin(b)) || q.mask >= 0)
        return fault() << "sequence " << q.sequence << " and behind " << q.behind << " of query token " << q.token;
    }
    return testing::AssertionSuccess();
  }

  /// The tokens of an entry are those of all of its query tokens.
  testing::AssertionResult range(int index) const {
    const Entry& e = list_.entries[index];
    if (e.query_begin < 0 || e.num_queries < 1 || e.num_queries > tokens_ - e.query_begin)
      return fault() << e.num_queries << " queries from " << e.query_begin;
    const bool none = e.chain > 0 && e.first == 0 && e.last == 0;  // the first of a chain
    if (e.first < 0 || e.first % p_.page_size != 0 ||
        (e.last >= 0 && !none && (e.last <= e.first || e.last % p_.page_size != 0)))
      return fault() << "tokens " << e.first << " to " << e.last;
    if (e.sequence != query(e.query_begin).sequence) return fault() << "sequence " << e.sequence;
    const int b0 = owner_[query(e.query_begin).token];
    for (int i = e.query_begin; i < e.query_begin + e.num_queries; ++i) {
      const int b = owner_[query(i).token];
      if (e.last < 0 && p_.sequence(b) != e.sequence) return fault() << "a query token of another sequence";
      if (e.last <= 0) continue;
      if (e.last > p_.seq_len(b) - p_.num_queries(b)) return fault() << "newest tokens in a shared entry";
      for (int page = e.first / p_.page_size; page < e.last / p_.page_size; ++page)
        if (p_.row(b)[page] != p_.row(b0)[page])
          return fault() << "page " << page << " of batch entries " << b << " and " << b0;
    }
    return testing::AssertionSuccess();
  }

  /// Entries `first` to first + chain are a chain, or one entry that stands alone.
  testing::AssertionResult entries_of_part(int first, int chain, int part) {
    const Entry& head = list_.entries[first];
    if (chain < 0 || chain > static_cast<int>(list_.entries.size()) - 1 - first) return fault() << "chain " << chain;
    if (chain > 0 && head.last < 0) return fault() << "a first entry to the sequence's end";
    std::vector<char> reads(static_cast<std::size_t>(head.num_queries));
    for (int k = 0; k <= chain; ++k) {
      const Entry& e = list_.entries[first + k];
      if (k > 0 && e.chain != -k) return fault() << "chain " << e.chain << " of entry " << k;
      if (e.state != head.state || e.kv_head != head.kv_head)
        return fault() << "state " << e.state << " and kv_head " << e.kv_head << " of entry " << k;
      if (e.query_begin < head.query_begin || e.query_begin + e.num_queries > head.query_begin + head.num_queries)
        return fault() << e.num_queries << " queries from " << e.query_begin << " of entry " << k;
      if (e.first == e.last) continue;
      for (int i = e.query_begin; i < e.query_begin + e.num_queries; ++i) {
        if (chain > 0 && (query(i).behind != 1 || query(i).mask >= 0)) return fault() << "an older query token";
        parts_of_[query(i).token].push_back({&e, part});
        reads[i - head.query_begin] = true;
      }
    }
    if (std::count(reads.begin(), reads.end(), true) != head.num_queries) return fault() << "a query reads nothing";
    return testing::AssertionSuccess();
  }

  /// The entries of a query token cover its sequence. Its states are those of its entries and chains, in order.
  testing::AssertionResult path(int token) {
    std::vector<Part>& parts = parts_of_[token];
    std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.entry->first < b.entry->first; });
    int covered = 0, states = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const Entry& e = *parts[i].entry;
      if (e.first != covered) return fault() << "an entry from " << e.first << ", not " << covered;
      if ((e.last < 0) != (i + 1 == parts.size())) return fault() << "an entry to " << e.last;
      states += i == 0 || parts[i].part != parts[i - 1].part;
      covered = e.last;
    }
    if (covered >= 0) return fault() << "no entry of the own tokens";
    const bool one = states == 1;
    for (std::size_t i = 0, state = 0; i < parts.size(); ++i) {
      state += i > 0 && parts[i].part != parts[i - 1].part;
      const int expected = one ? -1 : static_cast<int>(state);
      if (parts[i].entry->state != expected)
        return fault() << "state " << parts[i].entry->state << ", not " << expected;
    }
    const int counted = list_.state_begin[token + 1] - list_.state_begin[token];
    if (counted != (one ? 0 : states)) return fault() << counted << " states, not " << states;
    return testing::AssertionSuccess();
  }

  const BatchPages& p_;
  const EntryList& list_;
  int tokens_;
  std::vector<int> owner_;                   ///< batch entry of a query token
  std::vector<std::vector<Part>> parts_of_;  ///< entries with tokens, of a query token
};

/// The same list where each chain first reads what all of its query tokens share, and each node before its leaves. The
/// planner turns the order of some chains.
inline EntryList with_nodes_first(const EntryList& list) {
  EntryList to = list;
  to.entries.clear();
  for (std::size_t i = 0, end; i < list.entries.size(); i = end) {
    end = i + 1 + static_cast<std::size_t>(std::max(list.entries[i].chain, 0));
    std::vector<Entry> part(list.entries.begin() + static_cast<std::ptrdiff_t>(i),
                            list.entries.begin() + static_cast<std::ptrdiff_t>(end));
    if (part.size() > 1 && part[0].last == 0 && part.back().num_queries == part[0].num_queries) {
      std::reverse(part.begin() + 1, part.end());
      part.erase(part.begin());
      for (std::size_t k = 0; k < part.size(); ++k)
        part[k].chain = k > 0 ? -static_cast<int>(k) : static_cast<int>(part.size()) - 1;
    }
    to.entries.insert(to.entries.end(), part.begin(), part.end());
  }
  return to;
}

/// Whether a list is right; otherwise its first fault.
inline testing::AssertionResult is_right(const BatchPages& p, const EntryList& list) {
  return ListExaminer(p, list).examine();
}

inline void expect_right(const BatchPages& p, const EntryList& list) { ASSERT_TRUE(is_right(p, list)); }

}  // namespace pagoda::test
