// SPDX-License-Identifier: Apache-2.0
#include "bench/common/case.hpp"

#include <pagoda/error.hpp>
#include <pagoda/row_formats.hpp>

#include <algorithm>
#include <numeric>

namespace pagoda::bench {

int Case::longest() const { return *std::max_element(lengths.begin(), lengths.end()); }

std::int64_t Case::tokens() const { return std::accumulate(lengths.begin(), lengths.end(), std::int64_t(0)); }

std::int64_t Case::visible_tokens() const {
  if (options.window_left < 0) return tokens();
  const std::int64_t most = std::int64_t(options.window_left) + num_q_tokens + options.num_initial_tokens;
  return std::accumulate(lengths.begin(), lengths.end(), std::int64_t(0),
                         [&](std::int64_t sum, int length) { return sum + std::min<std::int64_t>(length, most); });
}

std::size_t Case::bytes() const {
  if (has_row_format(type)) return static_cast<std::size_t>(visible_tokens()) * num_kv_heads * row_elements();
  const int row            = latent() ? head_dim : head_dim + head_dim_v;
  const std::size_t blocks = blocks_of(type, head_dim) + blocks_of(type, head_dim_v);
  const std::size_t stored = static_cast<std::size_t>(row) * size_of(type) / dims_per_element(type) + blocks;
  return static_cast<std::size_t>(visible_tokens()) * num_kv_heads *
         (stored + (scaled_by_token() ? 2 * sizeof(float) : 0));
}

int Case::query_tokens(int b) const {
  if (!ragged()) return num_q_tokens;
  return b * num_long / batch() != (b + 1) * num_long / batch() ? num_q_tokens : 1;
}

int Case::query_begin(int b) const {
  if (!ragged()) return b * num_q_tokens;
  return b + b * num_long / batch() * (num_q_tokens - 1);
}

double Case::fmas() const {
  double pairs = 0;  // of query tokens and cached tokens
  for (int b = 0; b < batch(); ++b) pairs += static_cast<double>(query_tokens(b)) * lengths[b];
  return pairs * num_q_heads * (static_cast<double>(head_dim) + head_dim_v);
}

std::int64_t Case::pages() const {
  if (!paged()) return batch();
  std::int64_t n = 0;
  for (const int length : lengths) n += (length + page_size - 1) / page_size;
  return n;
}

std::size_t Case::row_elements() const {
  return static_cast<std::size_t>(has_row_format(type) ? row_format_of(type).bytes : head_dim / dims_per_element(type));
}

std::size_t Case::token_elements() const { return static_cast<std::size_t>(num_kv_heads) * row_elements(); }

std::string Case::name(std::string_view backend) const {
  using detail::concat;
  return concat("decode/", backend, "/", name_of(type), "/", num_q_heads, "x", num_kv_heads, "x", head_dim,
                latent() ? concat("-", head_dim_v) : std::string(), "/B", batch(),
                num_q_tokens > 1 ? concat("q", num_q_tokens) : std::string(),
                ragged() ? concat("of", num_long) : std::string(), "/", length_name, "/",
                paged() ? concat("page", page_size) : std::string("contiguous"), by_head ? "-HND" : "",
                offset > 0 ? concat("-off", offset) : std::string(), checked ? "-checked" : "",
                exactness == Exactness::fast ? std::string() : concat("-", name_of(exactness)),
                options.window_left >= 0 ? concat("-window", options.window_left) : std::string(),
                options.num_initial_tokens > 0 ? concat("+", options.num_initial_tokens) : std::string(),
                options.logit_soft_cap > 0 ? concat("-cap", options.logit_soft_cap) : std::string(),
                options.alibi ? "-alibi" : "", options.sinks ? "-sinks" : "");
}

Rotation rotation(std::size_t cache_bytes, std::size_t last_level, std::size_t room) {
  constexpr std::size_t least = 1'200'000'000, most_caches = 512;
  constexpr double bytes_in_calls = 4e9;  // about a millisecond of a GPU's memory
  const std::size_t bytes         = std::max<std::size_t>(cache_bytes, 1);
  const std::size_t wanted        = std::max(least, 4 * last_level);
  const std::size_t caches        = std::min(std::clamp<std::size_t>(wanted / bytes + 1, 2, most_caches), room / bytes);
  if (caches == 0) return {};
  const auto calls = static_cast<std::size_t>(std::clamp(bytes_in_calls / static_cast<double>(bytes), 8.0, 128.0));
  return {static_cast<int>(caches), static_cast<int>((calls + caches - 1) / caches * caches)};
}

}  // namespace pagoda::bench
