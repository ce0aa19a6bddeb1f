// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/plan.hpp>
#include <pagoda/types.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

/// A problem of the benchmarks: its name and its sizes. Independent of the device.
namespace pagoda::bench {

/// The time that the project aims at for a case (its bar), from the bare read R in microseconds. Where the tuned
/// kernels have another bar, it follows.
enum class Bar {
  none,
  batch,      ///< 1.05 R + 4; tuned 1.01 R + 3. Batches of 16 and more
  rows,       ///< 1.05 R + 6; tuned 1.01 R + 4.5. Few sequences
  small,      ///< R + 4; tuned R + 3. So small that the launch dominates
  quantized,  ///< 1.12 R + 5; tuned 1.06 R + 3. Elements that must be converted
  scattered,  ///< 1.10 R. Pages of one token
  latent16,   ///< 1.3 R; tuned 1.10 R. Latent cache of 16 query heads
  latent32,   ///< 1.6 R. Latent cache of 32 query heads
  latent128,  ///< tuned 580 TFLOP/s. Latent cache of 128 query heads, limited by products
  streamed    ///< 1.05 R. So long that only reading counts
};

/// Score options of a case (DecodeOptions).
struct CaseOptions {
  int window_left        = -1;
  int num_initial_tokens = 0;
  double logit_soft_cap  = 0;
  bool alibi             = false;
  bool sinks             = false;

  /// The slope and the sink of a query head, where the case has them.
  float alibi_slope(int head) const { return -0.01f * static_cast<float>(1 + head % 8); }
  float sink(int head) const { return static_cast<float>(head % 5 - 2); }
  bool any() const { return changes_tokens() || sinks; }
  bool changes_tokens() const { return window_left >= 0 || logit_soft_cap > 0 || alibi; }
};

/// One decode: the newest query tokens (one, as a rule) of each of `lengths.size()` sequences.
struct Case {
  DType type       = DType::fp16;
  int num_q_heads  = 0;
  int num_kv_heads = 0;
  int head_dim     = 128;
  int head_dim_v   = 128;  ///< if it is not head_dim, values are the first dims of the keys (a latent cache)
  int num_q_tokens = 1;    ///< of each sequence, causal
  int num_long     = 0;    ///< if not 0, only this many sequences have num_q_tokens, and each other one has one token
  std::vector<int> lengths;
  std::string length_name;      ///< "S1024" if all are equal, else a description
  int page_size       = 0;      ///< 0: contiguous
  bool by_head        = false;  ///< HND order in a page instead of NHD
  int offset          = 0;      ///< elements from an aligned address to the cache; rows are unaligned unless 0
  bool checked        = false;  ///< the plan examines tables in each decode (DecodeOptions::checked)
  Exactness exactness = Exactness::fast;  ///< of the plan
  CaseOptions options{};
  Bar bar = Bar::none;

  int batch() const { return static_cast<int>(lengths.size()); }
  bool paged() const { return page_size > 0; }
  bool latent() const { return head_dim_v != head_dim; }
  /// Sequences have different numbers of query tokens. The long ones are spread evenly over the batch.
  bool ragged() const { return num_long > 0; }
  int query_tokens(int b) const;
  /// Query tokens of sequences 0 to b - 1.
  int query_begin(int b) const;
  int longest() const;
  std::int64_t tokens() const;
  /// Tokens that a decode must read: those of `tokens()` that the options do not hide from all query tokens. Not for
  /// ragged cases.
  std::int64_t visible_tokens() const;
  /// Scales: types with block scales have these, and per-tensor scales if the type requires them. Integers have a scale
  /// per token and kv head. fp8 has a scale per tensor.
  bool scaled_by_token() const { return facts_of(type).scales == ScaleUse::required && facts_of(type).block_dims == 0; }

  /// Bytes of keys and values that a decode must read, with the scales of each token if there are any.
  std::size_t bytes() const;
  /// Fused multiply-adds of both products, including the few that the causal mask skips.
  double fmas() const;
  /// Pages of one cache; a contiguous sequence is a page of `longest()` tokens.
  std::int64_t pages() const;
  int page_tokens() const { return paged() ? page_size : longest(); }
  /// Elements of the keys of one token, and of one page. Values take the same number more, unless they are part of the
  /// keys.
  std::size_t token_elements() const;
  /// Elements of the key of one token and kv head.
  std::size_t row_elements() const;
  std::size_t page_elements() const { return static_cast<std::size_t>(page_tokens()) * token_elements(); }

  /// decode/generic/fp16/32x8x128/B64/S1024/page16, with several query tokens .../B64q4/..., if only 2 of
  /// the 64 have 4 .../B64q4of2/..., in HND order
  /// .../page16-HND, one element off an aligned address .../page16-off1, with a checked plan
  /// .../page16-checked, with fixed splits .../page16-batch_invariant, with score options
  /// .../page16-window4095+4-cap30-alibi-sinks
  std::string name(std::string_view backend) const;
};

/// How a case is kept cold: the number of caches used in turns, and of calls in one timed graph.
struct Rotation {
  int caches = 0;  ///< 0: not one fits
  int calls  = 0;  ///< a multiple of caches
};

/// Enough caches to exceed four times the last-level cache and 1.2 GB, at least two, as far as `room` allows. Enough
/// calls that the start of a graph does not count.
Rotation rotation(std::size_t cache_bytes, std::size_t last_level, std::size_t room);

}  // namespace pagoda::bench
