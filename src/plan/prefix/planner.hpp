// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/entry.hpp>

#include "src/plan/prefix/batch_pages.hpp"
#include "src/plan/prefix/cost.hpp"
#include "src/plan/prefix/forest.hpp"
#include "src/plan/prefix/pack.hpp"

#include <vector>

namespace pagoda::detail {

/// Plans decodes of batches whose sequences begin with the same pages, from block tables and lengths only. Memory is
/// reused by the next plan.
class PrefixPlanner {
 public:
  PrefixPlanner(const DecodeHeads& heads, const DeviceRates& device) : cost_(heads, device) {}

  /// Returns whether reading shared pages once is predicted to be faster than a plain decode. If so, list() has the
  /// entries. If not, the batch has no list and is decoded as a plain one. Throws InvalidArgument if lengths, sequence
  /// ids or offsets are outside of their arrays. The message begins with `who`.
  bool plan(const BatchPages& pages, const char* who = "pagoda::PrefixPlanner::plan");
  const EntryList& list() const { return list_; }
  /// Whether any page of the last batch is shared.
  bool shares() const { return !forest_.nodes().empty(); }
  /// Predicted times of the last batch that shared anything.
  double plain_us() const { return packing_.plain_us(); }
  double packed_us() const { return packing_.packed_us(); }
  const PrefixForest& forest() const { return forest_; }
  const CostModel& cost() const { return cost_; }

  /// Returns whether the last plan is still valid for these tables: the same sequences with the same query counts, each
  /// with the pages that its entries name, and each shared page still older than the sequence's query tokens. Sequences
  /// may have grown and may have new pages. The pages themselves are compared, not hashes. The function does not check
  /// whether another plan would now be faster: pages do not become shared while the batch stays the same.
  bool holds(const BatchPages& now, const char* who = "pagoda::PrefixPlanner::holds") const;
  /// Returns whether this seems to be the batch of the last plan: the same sequences with the same query counts, each
  /// with the same first and last full page. A slot that another sequence has taken is found by these pages. The tables
  /// must be checked already, by holds() for example.
  bool same_batch(const BatchPages& now) const;

 private:
  struct Member {
    int sequence, query_begin;
    int pages;        ///< that could be shared
    int first, last;  ///< ids of the first and the last of them
  };
  bool pack(const BatchPages& pages);

  bool planned_ = false, packed_ = false;
  int page_size_ = 0;
  std::vector<Member> members_;  ///< the batch of the last plan
  std::vector<int> entry_of_;    ///< batch entry of each query token
  CostModel cost_;
  PrefixForest forest_;
  PrefixPacking packing_;
  EntryList list_;
};

}  // namespace pagoda::detail
