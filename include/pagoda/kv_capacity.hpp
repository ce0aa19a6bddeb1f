// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/error.hpp>
#include <pagoda/row_formats.hpp>
#include <pagoda/types.hpp>

#include <cstdint>
#include <limits>

/// @file
/// Bytes, tokens and sequences: arithmetic for choosing the size of a pool before it is made. All counts are for one
/// layer of a model; multiply bytes by the number of layers that share a budget.
namespace pagoda {

/// Bytes of one token in a cache: a key and a value for each kv head, without the scales of a quantized cache.
/// head_dim_v: 0 selects head_dim. Throws InvalidArgument for negative sizes, for 2^60 dims or more, and for types with
/// a row format, which have no values apart (latent_bytes_per_token).
constexpr std::int64_t bytes_per_token(int num_kv_heads, int head_dim, DType type, int head_dim_v = 0) {
  const std::int64_t dims = std::int64_t(head_dim) + (head_dim_v > 0 ? head_dim_v : head_dim);
  if (num_kv_heads < 0 || head_dim < 0 || head_dim_v < 0 ||
      (dims > 0 && num_kv_heads >= (std::int64_t(1) << 60) / dims))
    throw InvalidArgument(detail::concat("pagoda::bytes_per_token: num_kv_heads is ", num_kv_heads, ", head_dim ",
                                         head_dim, ", head_dim_v ", head_dim_v,
                                         "; allowed: 0 or more each, and fewer than 2^60 dims of a token"));
  if (has_row_format(type))
    throw InvalidArgument(detail::concat("pagoda::bytes_per_token: type is ", name_of(type),
                                         "; allowed: types of caches with values apart from the keys"));
  return num_kv_heads * dims * size_of(type) / dims_per_element(type);
}

/// Bytes of one token in a latent cache (multi-head latent attention): one row of kv_lora_rank + rope_dim elements that
/// all heads read. Its first kv_lora_rank elements are also the value. Throws InvalidArgument for negative sizes, and
/// for sizes that the type's row format does not have. Source: DeepSeek-V2, section 2.1 (low-rank key-value joint
/// compression, decoupled rotary key).
constexpr std::int64_t latent_bytes_per_token(int kv_lora_rank, int rope_dim, DType type) {
  if (kv_lora_rank < 0 || rope_dim < 0)
    throw InvalidArgument(detail::concat("pagoda::latent_bytes_per_token: kv_lora_rank is ", kv_lora_rank,
                                         ", rope_dim ", rope_dim, "; allowed: 0 or more each"));
  if (has_row_format(type)) {
    const RowFormat format = row_format_of(type);
    const int rank = format.head_dim_v, rope = format.head_dim - format.head_dim_v;
    if (kv_lora_rank != rank || rope_dim != rope)
      throw InvalidArgument(detail::concat("pagoda::latent_bytes_per_token: kv_lora_rank is ", kv_lora_rank,
                                           ", rope_dim ", rope_dim, "; allowed: ", rank, " and ", rope, " for ",
                                           name_of(type)));
    return format.bytes;
  }
  return (std::int64_t(kv_lora_rank) + rope_dim) * size_of(type) / dims_per_element(type);
}

/// Tokens of memory that a sequence of seq_len tokens occupies, in whole pages. A contiguous cache is the case of one
/// page of max_seq_len tokens for each sequence, which an empty sequence occupies too. Throws InvalidArgument for a
/// negative seq_len, a page_size below 1, and a result of 2^63 or more.
constexpr std::int64_t reserved_tokens(std::int64_t seq_len, std::int64_t page_size) {
  if (seq_len < 0 || page_size < 1 || seq_len > std::numeric_limits<std::int64_t>::max() / page_size * page_size)
    throw InvalidArgument(detail::concat("pagoda::reserved_tokens: seq_len is ", seq_len, ", page_size ", page_size,
                                         "; allowed: a seq_len of 0 or more, a page_size of 1 or more, and whole pages "
                                         "of fewer than 2^63 tokens"));
  return (seq_len / page_size + (seq_len % page_size != 0)) * page_size;
}

/// Unused fraction of the memory that sequences of seq_len tokens reserve: 0.75 for 512 tokens in a contiguous cache
/// whose max_seq_len (passed as page_size) is 2048. Heidari et al. call it fragmentation. Throws as reserved_tokens.
/// Source: Heidari et al., "Efficient Decode Attention: Flash-Decoding with Paged KV Caches", sections I.b and VII.D.
constexpr double waste_fraction(std::int64_t seq_len, std::int64_t page_size) {
  const auto reserved = reserved_tokens(seq_len, page_size);
  return reserved > 0 ? 1.0 - static_cast<double>(seq_len) / static_cast<double>(reserved) : 0.0;
}

/// Number of sequences of seq_len tokens that fit into budget_bytes, in pages of page_size tokens that are not shared.
/// For a contiguous cache, page_size is its max_seq_len. Throws InvalidArgument for a negative budget and for other
/// sizes below 1.
/// Source: Heidari et al., section VII.D and figure 5.
constexpr std::int64_t sequences_that_fit(std::int64_t budget_bytes, std::int64_t token_bytes, std::int64_t seq_len,
                                          std::int64_t page_size) {
  if (budget_bytes < 0 || token_bytes < 1 || seq_len < 1 || page_size < 1)
    throw InvalidArgument(detail::concat("pagoda::sequences_that_fit: budget_bytes is ", budget_bytes, ", token_bytes ",
                                         token_bytes, ", seq_len ", seq_len, ", page_size ", page_size,
                                         "; allowed: a budget of 0 or more, the others 1 or more"));
  return budget_bytes / token_bytes / page_size / (reserved_tokens(seq_len, page_size) / page_size);
}

}  // namespace pagoda
