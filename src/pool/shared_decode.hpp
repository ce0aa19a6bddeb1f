// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/batch_pages.hpp>
#include <pagoda/prefix.hpp>

#include "src/pool/page_table.hpp"

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace pagoda::detail {

/// A pool's tables in the form that planners read.
class HostTables {
 public:
  explicit HostTables(int max_sequences) : seq_lens_(max_sequences), rows_(max_sequences) {}

  /// The batch of these slots. The result refers to `slots`, and is valid until the table changes.
  BatchPages of(const PageTable& table, std::span<const int> slots, int query_len) {
    for (const int slot : slots) {
      seq_lens_[slot] = table.seq_len(slot);
      rows_[slot]     = table.pages(slot).data();
    }
    BatchPages p;
    p.batch         = static_cast<int>(slots.size());
    p.num_sequences = static_cast<int>(seq_lens_.size());
    p.seq_lens      = seq_lens_.data();
    p.sequence_ids  = slots.data();
    p.query_len     = query_len;
    if (!table.shape().contiguous) p.page_size = table.shape().page_size, p.page_rows = rows_.data();
    return p;
  }

 private:
  std::vector<int> seq_lens_;
  std::vector<const int*> rows_;
};

/// Decodes of a pool that read shared pages once. A plan serves until the slots or the query counts differ from those
/// of the decode before, or a sequence was released: until then sequences only grow, which changes no full page.
template <class ExecutionSpace>
class SharedDecode {
 public:
  using Options = DecodeOptions<typename ExecutionSpace::memory_space>;

  SharedDecode(const ExecutionSpace& exec, const CacheRef& kv, const Options& options, const PrefixOptions& prefix,
               int max_sequences)
      : decoder_(exec, kv, options, prefix) {
    slots_.reserve(static_cast<std::size_t>(max_sequences));
  }

  /// Plans on the host. If it throws, the next call plans again.
  void plan(const PageTable& table, HostTables& tables, std::span<const int> slots, int query_len) {
    if (planned_ && query_len == query_len_ && table.releases() == releases_ && std::ranges::equal(slots, slots_)) {
      report_.new_plan = false, report_.planning_us = 0;
      return;
    }
    planned_ = false;
    decoder_.plan(tables.of(table, slots, query_len));
    report_    = decoder_.report();
    releases_  = table.releases();
    query_len_ = query_len;
    slots_.assign(slots.begin(), slots.end());
    planned_ = true;
  }

  /// Decodes the batch of the last plan.
  void decode(const ExecutionSpace& exec, const Problem& p) {
    decoder_.install(exec);
    decoder_.decode_erased(exec, p.kv, p.q, p.out, p.lse);
  }

  /// Changes the rates of later plans.
  void set_rates(const DeviceRates& rates) {
    decoder_.set_rates(rates);
    planned_ = false;
  }

  const DeviceRates& rates() const { return decoder_.rates(); }
  const Plan<ExecutionSpace>& plain_plan() const { return decoder_.plain_plan(); }
  const PrefixReport& report() const { return report_; }

 private:
  PrefixDecoder<ExecutionSpace> decoder_;
  PrefixReport report_{.plain_because = "there was no decode yet"};
  // What the last plan was made for.
  bool planned_          = false;
  int query_len_         = 0;
  std::int64_t releases_ = 0;
  std::vector<int> slots_;
};

}  // namespace pagoda::detail
