// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/common/cost_model.hpp"
#include "backends/cuda/tuned/decode.hpp"
#include "backends/cuda/tuned/wgmma/tuning.hpp"
#include "src/base/divisor.hpp"

#include <algorithm>
#include <cstdint>

/// A batch entry of more than 128 query rows takes several passes. A pass is an entry for the kernel: it has some of
/// the query tokens, in order, and its sequence ends with the newest token that the last of them sees. So a pass is
/// masked, divided among blocks and stored as any entry is.
///
/// Blocks take several passes of a batch entry side by side, so that the first of them to read a tile brings it to the
/// second-level cache for all. They differ in the y of the grid. A *round* is the passes of a batch entry that run side
/// by side. Blocks of one y divide the rounds among themselves, as they would divide batch entries.
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
/// Whether most entries of a ragged batch have far fewer query tokens than the longest one.
inline bool has_few_long_entries(const Problem& p) {
  return p.cu_seqlens_q && 2 * p.total_q_tokens <= std::int64_t(p.batch) * p.max_q_tokens;
}
/// Passes of 64 rows are taken only where sequences may have at least so many tokens. Shorter ones lose more by the
/// larger number of entries than they gain.
inline constexpr int min_tokens_of_small_passes = 2048;
/// The most query rows of a pass. A block of 128 rows is alone on its multiprocessor and reads the cache once for all
/// of them. Where few entries of a ragged batch have that many, passes of 64 rows are faster: two of their blocks run
/// side by side, and the work of a long entry is divided among more of them (bench/NOTES.md, "Many query rows").
inline int pass_limit(const Problem& p) {
  return has_few_long_entries(p) && p.max_seq_len >= min_tokens_of_small_passes && group_size_of(p) <= tile_rows
             ? tile_rows
             : max_rows;
}
/// The query rows of a pass of as many query tokens as `limit` rows hold; of a list, those of an entry.
inline int pass_rows(const Problem& p, int limit) {
  if (is_list(p)) return static_cast<int>(max_rows_of(p));
  return group_size_of(p) * std::min(std::max(limit / group_size_of(p), 1), p.max_q_tokens);
}
/// Index of the pass that block `y` takes of a round. It changes from one entry of the kernel to the next, so that each
/// y has all kinds of passes: early ones see fewer tokens, and in ragged batches late ones are often empty. round:
/// index within the batch entry; entry: index of the round in the batch.
PAGODA_HOST_DEVICE inline int pass_of_block(int round, int entry, int y, const detail::Divisor& side_by_side) {
  const int turned = y + side_by_side.rest(entry);
  return round * side_by_side.value + (turned < side_by_side.value ? turned : turned - side_by_side.value);
}

/// Passes over a batch entry, and the query tokens of each.
struct Passes {
  int count, tokens;
  int side_by_side = 1, rounds = count;  ///< the last round may have fewer passes
};

/// Passes side by side, of which each has the same number of `blocks`. The more there are, the less is read; but the
/// last round may be incomplete, and blocks may be left over.
constexpr int passes_side_by_side(int count, int blocks) {
  constexpr int most = 16;
  // Blocks that read a tile from memory delay the others: with one pass products and memory take about as long.
  const auto price = [&](int n) {
    const int rounds = (count - 1) / n + 1, used = blocks / n * n;
    return (1 + 0.25 / n) * rounds * n / used;
  };
  int best = 1;
  for (int n = 2; n <= std::min({count, blocks, most}); ++n)
    if (price(n) < price(best)) best = n;
  return best;
}
/// blocks: that run at the same time; 1 if passes must not run side by side. Few long entries never do: most passes
/// of a batch are of one entry then, or empty.
inline Passes passes_of(const Problem& p, int blocks = 1) {
  const auto div_up = [](int n, int by) { return (n - 1) / by + 1; };
  const int all     = std::max(p.cu_seqlens_q ? p.max_q_tokens : p.num_q_tokens, 1);
  const int count   = div_up(all, std::max(pass_limit(p) / group_size_of(p), 1));
  const int n       = has_few_long_entries(p) ? 1 : passes_side_by_side(count, blocks);
  return {count, div_up(all, count), n, div_up(count, n)};
}

}  // namespace pagoda::tuned::wgmma
