// SPDX-License-Identifier: Apache-2.0
#include "src/plan/prefix/planner.hpp"

#include <algorithm>
#include <numeric>

namespace pagoda::detail {

bool PrefixPlanner::plan(const BatchPages& pages, const char* who) {
  planned_ = packed_ = false;
  list_.clear();
  require_batch_pages(who, pages);
  page_size_ = pages.page_size;
  members_.resize(static_cast<std::size_t>(pages.batch));
  const PageDivisor pages_of(page_size_);
  for (int b = 0; b < pages.batch; ++b) {
    Member& m = members_[b];
    m         = {pages.sequence(b), pages.query_begin(b), 0, -1, -1};
    if (!pages.paged()) continue;
    m.pages = pages_of(std::max(pages.seq_len(b) - pages.num_queries(b), 0));
    if (m.pages == 0) continue;
    const PageRow row = pages.row(b);
    m.first = row[0], m.last = row[m.pages - 1];
  }
  packed_  = forest_.build(pages) && pack(pages);
  planned_ = true;  // not if memory ran out before
  return packed_;
}

/// Writes the list if it pays.
bool PrefixPlanner::pack(const BatchPages& pages) {
  packing_.choose(pages, forest_, cost_);
  if (packing_.packed_us() >= packing_.plain_us()) return false;
  packing_.write(list_);
  entry_of_.resize(static_cast<std::size_t>(pages.query_tokens()));
  if (!pages.cu_seqlens_q && pages.query_len == 1)
    std::iota(entry_of_.begin(), entry_of_.end(), 0);
  else
    for (int b = 0; b < pages.batch; ++b)
      std::fill_n(entry_of_.begin() + pages.query_begin(b), pages.num_queries(b), b);
  return true;
}

bool PrefixPlanner::same_batch(const BatchPages& now) const {
  if (!planned_ || now.page_size != page_size_ || now.batch != static_cast<int>(members_.size())) return false;
  for (int b = 0; b < now.batch; ++b) {
    const Member& m = members_[b];
    if (now.sequence(b) != m.sequence || now.query_begin(b) != m.query_begin || now.shareable_pages(b) < m.pages)
      return false;
    if (m.pages > 0 && (now.row(b)[0] != m.first || now.row(b)[m.pages - 1] != m.last)) return false;
  }
  return true;
}

bool PrefixPlanner::holds(const BatchPages& now, const char* who) const {
  if (!planned_) return false;
  require_batch_pages(who, now);
  if (!packed_) return true;  // a plain decode is always right
  if (now.page_size != page_size_ || now.batch != static_cast<int>(members_.size()) ||
      now.query_tokens() != static_cast<int>(entry_of_.size()))
    return false;
  for (int b = 0; b < now.batch; ++b)
    if (now.sequence(b) != members_[b].sequence || now.query_begin(b) != members_[b].query_begin) return false;
  for (const Entry& e : list_.entries) {
    if (e.last <= 0) continue;  // a sequence's own tokens, or none
    int before = -1;            // the batch entry of the query token before
    for (int i = e.query_begin; i < e.query_begin + e.num_queries; ++i) {
      const int b = entry_of_[list_.queries[i].token];
      if (b == before) continue;
      if (now.shareable_pages(b) < e.last / page_size_) return false;
      if (before >= 0 &&
          common_end(now.row(before), now.row(b), e.first / page_size_, e.last / page_size_) < e.last / page_size_)
        return false;
      before = b;
    }
  }
  return true;
}

}  // namespace pagoda::detail
