// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/error.hpp>
#include <pagoda/types.hpp>

#include <cstdint>

/// How many tokens and sequences fit how many bytes: the arithmetic behind the pools, for sizing one before it exists.
/// All counts are of one layer of a model; multiply bytes by the layers that share a budget.
namespace pagoda {

/// Bytes that one token takes in a cache of grouped heads: a key and a value per kv head.
/// Scales of a quantized cache are not counted. head_dim_v: 0 = head_dim. With as many kv heads as query heads it is
/// multi-head attention, with one multi-query.
constexpr std::int64_t bytes_per_token(int num_kv_heads, int head_dim, DType type, int head_dim_v = 0) {
  return std::int64_t(num_kv_heads) * (head_dim + (head_dim_v > 0 ? head_dim_v : head_dim)) * size_of(type) /
         dims_per_element(type);
}

/// Bytes that one token takes in a latent cache (multi-head latent attention): one row of kv_lora_rank + rope_dim that
/// all heads read, its first kv_lora_rank elements serving as the value too.
/// Source: DeepSeek-V2, section 2.1 (low-rank key-value joint compression, decoupled rotary key).
constexpr std::int64_t latent_bytes_per_token(int kv_lora_rank, int rope_dim, DType type) {
  return std::int64_t(kv_lora_rank + rope_dim) * size_of(type) / dims_per_element(type);
}

/// Tokens of memory that a sequence of seq_len tokens takes, in whole pages. A contiguous cache is the case of one page
/// of max_seq_len tokens per sequence, which even an empty sequence holds.
constexpr std::int64_t reserved_tokens(std::int64_t seq_len, std::int64_t page_size) {
  return (seq_len + page_size - 1) / page_size * page_size;
}

/// Share of what sequences of seq_len tokens reserve that they do not use: 0.75 for 512 tokens in a contiguous cache of
/// max_seq_len (here page_size) 2048. What the study calls fragmentation.
/// Source: Heidari et al., "Efficient Decode Attention: Flash-Decoding with Paged KV Caches", sections I.b and VII.D.
constexpr double waste_fraction(std::int64_t seq_len, std::int64_t page_size) {
  const auto reserved = reserved_tokens(seq_len, page_size);
  return reserved > 0 ? 1.0 - static_cast<double>(seq_len) / static_cast<double>(reserved) : 0.0;
}

/// Sequences of seq_len tokens that fit budget_bytes in pages of page_size tokens; for a contiguous cache page_size is
/// its max_seq_len. Pages are not shared. Throws InvalidArgument for sizes below 1 (budget: below 0).
/// Source: Heidari et al., section VII.D and figure 5.
constexpr std::int64_t sequences_that_fit(std::int64_t budget_bytes, std::int64_t token_bytes, std::int64_t seq_len,
                                          std::int64_t page_size) {
  if (budget_bytes < 0 || token_bytes < 1 || seq_len < 1 || page_size < 1)
    throw InvalidArgument(detail::concat("pagoda::sequences_that_fit: budget_bytes is ", budget_bytes, ", token_bytes ",
                                         token_bytes, ", seq_len ", seq_len, ", page_size ", page_size,
                                         "; allowed: a budget of 0 or more, the others 1 or more"));
  return budget_bytes / (token_bytes * page_size) / (reserved_tokens(seq_len, page_size) / page_size);
}

}  // namespace pagoda
