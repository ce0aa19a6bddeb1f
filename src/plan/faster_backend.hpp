// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/detail/schedule.hpp>
#include <pagoda/types.hpp>

#include <algorithm>
#include <cstdint>

/// Which backend is faster if both support a decode: the hand-tuned or the generic kernels.
namespace pagoda::detail {

/// What a plan knows about later decodes and about the device.
struct DecodeBounds {
  DType type{};                              ///< type of keys and values
  int group{}, head_dim{}, max_query_len{};  ///< group: query heads to a kv head
  bool paged{};
  bool small_pages{};   ///< pages of a number of tokens that is no multiple of 8
  std::int64_t rows{};  ///< batch entries times kv heads
  /// max_seq_len: tokens that are read of a sequence; capacity_tokens: of the whole cache, all sequences
  std::int64_t max_seq_len{}, capacity_tokens{};
  int num_kv_heads{};
  int sm{}, num_sms{};    ///< compute capability (90) and multiprocessors
  bool changes_scores{};  ///< has score options (AttentionOptions)
  bool changes_tokens{};  ///< has score options other than sinks
  bool fixed_splits{};    ///< has an exactness other than fast
};

/// Tokens of a sequence of max_seq_len tokens that a single query token sees: initial tokens and a window, or all.
constexpr std::int64_t max_visible_tokens(const AttentionOptions& o, std::int64_t max_seq_len) {
  if (o.window_left < 0) return max_seq_len;
  return std::min(max_seq_len, std::int64_t(o.window_left) + 1 + o.num_initial_tokens);
}

constexpr std::int64_t batch_of(const DecodeBounds& d) { return d.rows / std::max(d.num_kv_heads, 1); }
/// Tokens of all sequences.
constexpr std::int64_t tokens_of(const DecodeBounds& d) {
  return std::min(batch_of(d) * d.max_seq_len, d.capacity_tokens);
}
/// Keys and values to read, for each multiprocessor.
constexpr double megabytes_per_sm(const DecodeBounds& d) {
  return static_cast<double>(tokens_of(d)) * d.num_kv_heads * 2 * d.head_dim / dims_per_element(d.type) *
         size_of(d.type) * 1e-6 / std::max(d.num_sms, 1);
}

/// The same as below for latent caches whose tiles the hand-tuned kernel makes of rows: those of fp8_ds_mla, and those
/// in small pages. Measured on H200s with 16 to 128 query heads. It makes tiles of bf16 or fp16, which takes it as long
/// for one query row as for 64; it starts sooner and merges splits faster.
constexpr const char* why_generic_is_faster_for_rows(const DecodeBounds& d) {
  const int query_rows      = d.group * d.max_query_len;
  const std::int64_t tokens = std::min(d.rows * d.max_seq_len, d.capacity_tokens);
  const double per_sm       = static_cast<double>(tokens) / std::max(d.num_sms, 1);
  const bool in_rows        = d.type == DType::fp8_ds_mla;
  if (query_rows <= 16 && per_sm >= 800)
    return in_rows ? "large fp8_ds_mla caches with up to 16 query rows"
                   : "large latent caches in small pages with up to 16 query rows";
  if (query_rows <= 32 && per_sm >= 1800)
    return in_rows ? "large fp8_ds_mla caches with up to 32 query rows"
                   : "large latent caches in small pages with up to 32 query rows";
  return nullptr;
}

/// The same as below for more than 8 query heads to a kv head, measured on H200s with 16 heads, one query token and
/// small pages: with 0.5 MB for each multiprocessor the generic kernel took 22.3 us and the hand-tuned one 24.3, with 4
/// MB 140 and 132.
constexpr const char* why_generic_is_faster_for_many_heads(const DecodeBounds& d) {
  if (d.small_pages && d.max_query_len == 1 && !d.changes_scores && !d.fixed_splits && megabytes_per_sm(d) <= 1)
    return "small batches of many query heads in small pages";
  return nullptr;
}

/// Null if the hand-tuned kernels are at least as fast as the generic ones; otherwise a text that says for which
/// batches the generic ones are faster.
///
/// This is an empirical rule from all rows of pagoda_bench_decode on an H100 and an H200. On the average of the cards
/// in bench/results, the backend it chooses is within 0.5% + 0.5 us of the faster one
/// (tests/bench/test_default_backend.cpp); single cards differ by up to 2.5%. In these rows it takes up to 12% longer
/// where few sequences of a batch have 32 query tokens: the hand-tuned kernels divide work by tokens, and tiles of
/// these sequences take longer (bench/NOTES.md, "Ragged counts, tuned beside generic"). Passes of 64 rows have since
/// made those of 4096 tokens 9 to 13% faster ("Many query rows of head_dim 64 and 128"). On an H100 it takes 5% longer
/// with ALiBi or sinks and 1 GB of fp8 ("The third run on an H100"). In rows of fp8 that the test names, single cards
/// differ by up to 5%. The generic kernel issues fewer instructions for 8 bits and reads long contiguous rows at 0.5 to
/// 1.5% more bandwidth; the hand-tuned ones start sooner, merge splits faster, and balance uneven lengths better. So
/// the generic one is faster only if rows are whole and long. Score options cost the generic kernel up to half of its
/// speed with fp8 and up to 14% with other types, and the hand-tuned ones 13% with fp8 and 7% with other types below 60
/// us, 3% above; they were measured with four query heads to a kv head. With more than 8 query rows to a kv head the
/// generic kernel takes 1.0 to 3.8 times as long, with score options and without (but see small pages above). Other
/// cards were not measured, and neither was cu_seqlens_q: the rule is the same with it.
///
/// With fixed splits the answer must follow from the shape alone, not from the batch or the bounds of a plan.
constexpr const char* why_generic_is_faster(const DecodeBounds& d) {
  if (d.sm == 90 && (d.type == DType::fp8_ds_mla || (d.small_pages && d.head_dim == 576)))
    return why_generic_is_faster_for_rows(d);
  if (d.sm != 90 || d.head_dim != 128) return nullptr;
  if (d.group > 8) return why_generic_is_faster_for_many_heads(d);
  const bool fp32_of_many_heads = d.type == DType::fp32 && d.group > 4;
  if (d.fixed_splits) return fp32_of_many_heads ? "fp32 caches with many query heads" : nullptr;
  // With sinks, generic decodes of fp8 take as long as without, and those of fp32 up to 10% longer.
  const bool tuned_options = d.type == DType::fp8_e4m3 ? d.changes_tokens : d.changes_scores && !fp32_of_many_heads;
  if (d.max_query_len > 1 || tuned_options) return nullptr;
  // If the cache cannot hold max_seq_len tokens of every sequence, lengths are assumed to be uneven.
  const bool even               = tokens_of(d) >= batch_of(d) * d.max_seq_len * 9 / 10;
  const double rows_per_sm      = static_cast<double>(d.rows) / std::max(d.num_sms, 1);
  const double megabytes_per_sm = detail::megabytes_per_sm(d);
  if (!even) return d.type == DType::fp8_e4m3 && d.group == 1 && megabytes_per_sm >= 12 ? "large fp8 caches" : nullptr;

  const bool whole      = rows_per_sm >= 1.5;                    // rows are not split
  const bool one_round  = rows_per_sm <= 8;                      // all rows run at once, in teams of one worker
  const bool two_rounds = rows_per_sm > 8 && rows_per_sm <= 16;  // the second round waits for the first
  switch (d.type) {
    case DType::fp16:
    case DType::bf16:
      if (!d.paged && whole &&
          (d.group == 1 ? !two_rounds && megabytes_per_sm >= 3.5 : rows_per_sm <= 4 && megabytes_per_sm >= 7))
        return "large contiguous caches";
      if (d.group == 1 && rows_per_sm > 16 && megabytes_per_sm >= 10) return "large batches without grouped heads";
      return nullptr;
    case DType::fp8_e4m3:
      if (whole && megabytes_per_sm >= 1.5 && (d.group <= 4 ? one_round : rows_per_sm <= 2)) return "large fp8 caches";
      if (d.paged && !whole && rows_per_sm >= 0.4 && megabytes_per_sm >= 4) return "large fp8 caches";
      if (!d.paged && d.group > 4 && whole && rows_per_sm <= 8 && megabytes_per_sm >= 3.5)
        return "large contiguous caches";
      if (d.group == 1 && two_rounds && megabytes_per_sm >= 12) return "large fp8 caches";
      if (d.group == 1 && !d.paged && rows_per_sm > 16 && megabytes_per_sm >= 4) return "large contiguous caches";
      return nullptr;
    case DType::fp32:
      if (d.group > 4
              ? megabytes_per_sm >= 1.5
              : whole && rows_per_sm <= 4 && megabytes_per_sm >= 3 && (rows_per_sm <= 2 || megabytes_per_sm <= 40))
        return "large fp32 caches";
      return nullptr;
    case DType::int8:
    case DType::int4:  // the hand-tuned kernels read two kv heads at once for up to four query heads only
      if (d.group > 4 && whole && megabytes_per_sm >= 0.12) return "large integer caches with many query heads";
      return nullptr;
    default:
      return nullptr;
  }
}

}  // namespace pagoda::detail
