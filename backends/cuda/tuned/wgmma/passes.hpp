// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/common/cost_model.hpp"
#include "backends/cuda/tuned/decode.hpp"
#include "backends/cuda/tuned/wgmma/tuning.hpp"

#include <algorithm>
#include <cstdint>

/// A batch entry of more than 128 query rows takes several passes. A pass is an entry for the kernel: it has some of
/// the query tokens, in order, and its sequence ends with the newest token that the last of them sees. So a pass is
/// masked, divided among blocks and stored as any entry is.
namespace pagoda::tuned::wgmma {

/// Query tokens of a pass. per_pass: of each pass, at most; all: of the batch entry.
PAGODA_HOST_DEVICE constexpr int queries_of_pass(int pass, int per_pass, int all) {
  const int left = all - pass * per_pass;
  return left <= 0 ? 0 : left < per_pass ? left : per_pass;
}

/// Tokens of its sequence; none if it has no query tokens, so that no block reads them. len: tokens of the batch
/// entry's sequence. hides_newer: query tokens do not see newer tokens.
PAGODA_HOST_DEVICE constexpr int tokens_of_pass(int pass, int per_pass, int all, int len, bool hides_newer) {
  const int queries = queries_of_pass(pass, per_pass, all);
  if (queries == 0) return 0;
  const int seen = hides_newer ? len - (all - pass * per_pass - queries) : len;
  return seen < 0 ? 0 : seen;
}

/// The most query rows of a kv head. Neither the kernel nor its workspace layout depends on the number in a call.
inline std::int64_t max_rows_of(const Problem& p) { return std::int64_t(group_size_of(p)) * p.max_q_tokens; }
/// Passes of 64 rows are taken only where sequences may have at least so many tokens. Shorter ones lose more by the
/// larger number of entries than they gain.
inline constexpr int min_tokens_of_small_passes = 2048;
/// The most query rows of a pass. A block of 128 rows is alone on its multiprocessor and reads the cache once for all
/// of them. Where few entries of a ragged batch have that many, passes of 64 rows are faster: two of their blocks run
/// side by side, and the work of a long entry is divided among more of them (bench/NOTES.md, "Many query rows").
inline int pass_limit(const Problem& p) {
  const bool few_long = p.cu_seqlens_q && 2 * p.total_q_tokens <= std::int64_t(p.batch) * p.max_q_tokens &&
                        p.max_seq_len >= min_tokens_of_small_passes;
  return few_long && group_size_of(p) <= tile_rows ? tile_rows : max_rows;
}
/// The query rows of a pass of as many query tokens as `limit` rows hold; of a list, those of an entry.
inline int pass_rows(const Problem& p, int limit) {
  if (is_list(p)) return static_cast<int>(max_rows_of(p));
  return group_size_of(p) * std::min(std::max(limit / group_size_of(p), 1), p.max_q_tokens);
}
/// Passes over a batch entry, and the query tokens of each.
struct Passes {
  int count, tokens;
};
inline Passes passes_of(const Problem& p) {
  const auto div_up = [](int n, int by) { return (n - 1) / by + 1; };
  const int all     = std::max(p.cu_seqlens_q ? p.max_q_tokens : p.num_q_tokens, 1);
  const int count   = div_up(all, std::max(pass_limit(p) / group_size_of(p), 1));
  return {count, div_up(all, count)};
}

}  // namespace pagoda::tuned::wgmma
