// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/types.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

/// A problem of the benchmarks: its name and its sizes. Knows no device.
namespace pagoda::bench {

/// Which of the project's bars a case is held to, R being its floor in microseconds: for the generic kernel, and for
/// the tuned ones where they have one of their own.
enum class Bar {
  none,
  batch,      ///< 1.05 R + 4; tuned 1.01 R + 3. From a batch of 16 on
  rows,       ///< 1.05 R + 6; tuned 1.01 R + 4.5. Few sequences
  small,      ///< R + 4; tuned R + 3. So few bytes that launching is most of it
  quantized,  ///< 1.12 R + 5; tuned 1.06 R + 3. Elements that must be converted
  scattered,  ///< 1.10 R. Every token on a page of its own
  latent16,   ///< 1.3 R; tuned 1.10 R. Latent cache of 16 query heads
  latent32,   ///< 1.6 R. Of 32
  latent128,  ///< tuned 580 TFLOP/s. Of 128, where products are the limit
  streamed    ///< 1.05 R. So long that nothing but reading counts
};

/// One decode: the newest query tokens (one, as a rule) of each of `lengths.size()` sequences.
struct Case {
  DType type       = DType::fp16;
  int num_q_heads  = 0;
  int num_kv_heads = 0;
  int head_dim     = 128;
  int head_dim_v   = 128;  ///< if it is not head_dim, values are the first dims of the keys (a latent cache)
  int num_q_tokens = 1;    ///< of each sequence, causal
  std::vector<int> lengths;
  std::string length_name;  ///< "S1024" where all are equal, else what they are
  int page_size = 0;        ///< 0: contiguous
  bool by_head  = false;    ///< a page has one head's tokens after another's (HND), not one token's heads (NHD)
  int offset    = 0;        ///< elements from an aligned address to the cache: rows are not aligned if it is not 0
  Bar bar       = Bar::none;

  int batch() const { return static_cast<int>(lengths.size()); }
  bool paged() const { return page_size > 0; }
  bool latent() const { return head_dim_v != head_dim; }
  int longest() const;
  std::int64_t tokens() const;
  /// Elements with block scales have those, and one for all keys and one for all values if they must. Of the others,
  /// integers have a scale for every token and kv head, of keys and of values; fp8 has one for all keys and one for all
  /// values.
  bool scaled_by_token() const { return facts_of(type).scales == ScaleUse::required && facts_of(type).block_dims == 0; }

  /// Bytes of keys and values that a decode must read, and of their scales where every token has some.
  std::size_t bytes() const;
  /// Fused multiply-adds of both products (with the few that the causal mask spares).
  double fmas() const;
  /// Pages of one cache; a contiguous sequence is a page of `longest()` tokens.
  std::int64_t pages() const;
  int page_tokens() const { return paged() ? page_size : longest(); }
  /// Elements of the keys of one token, and of one page; as many more for the values, if they are not the keys.
  std::size_t token_elements() const;
  std::size_t page_elements() const { return static_cast<std::size_t>(page_tokens()) * token_elements(); }

  /// decode/generic/fp16/32x8x128/B64/S1024/page16, of several query tokens .../B64q4/..., head by head
  /// .../page16-HND, off an aligned address by one element .../page16-off1
  std::string name(std::string_view backend) const;
};

/// How a case is kept cold: so many caches in turns, so many calls in one timed graph.
struct Rotation {
  int caches = 0;  ///< 0: not even one fits
  int calls  = 0;  ///< a multiple of caches
};

/// Caches enough to exceed four times the last-level cache and 1.2 GB, at least two, as far as `room` allows. Calls
/// enough for the start of a graph not to show.
Rotation rotation(std::size_t cache_bytes, std::size_t last_level, std::size_t room);

}  // namespace pagoda::bench
