// SPDX-License-Identifier: Apache-2.0
#include <pagoda/error.hpp>
#include <pagoda/kv_pool.hpp>

#include "src/pool/pool_state.hpp"

#include <cstdint>
#include <limits>

namespace pagoda::detail {

PoolOptions checked(const std::string& owner, PoolOptions o, bool contiguous) {
  const auto at_least = [&](const char* name, int value, int least) {
    require(value >= least, owner, ": ", name, " is ", value, "; allowed: ", least, " or more");
  };
  at_least("num_kv_heads", o.num_kv_heads, 1);
  at_least("head_dim", o.head_dim, 1);
  at_least("head_dim_v", o.head_dim_v, 0);
  at_least("max_seq_len", o.max_seq_len, 1);
  at_least("max_sequences", o.max_sequences, 1);
  at_least("num_q_heads", o.num_q_heads, 0);
  require(o.share_prefixes == SharePrefixes::automatic || o.share_prefixes == SharePrefixes::never, owner,
          ": share_prefixes is ", static_cast<int>(o.share_prefixes), "; allowed: automatic (0) or never (1)");
  if (o.head_dim_v == 0) o.head_dim_v = o.head_dim;
  if (contiguous) {
    o.page_size = o.max_seq_len;
    o.num_pages = o.max_sequences;
    return o;
  }
  at_least("page_size", o.page_size, 1);
  at_least("num_pages", o.num_pages, 0);
  if (o.num_pages == 0) {
    const std::int64_t each = o.max_seq_len / o.page_size + (o.max_seq_len % o.page_size != 0);
    require(each * o.max_sequences <= std::numeric_limits<int>::max(), owner, ": max_sequences = ", o.max_sequences,
            " of max_seq_len = ", o.max_seq_len, " take ", each * o.max_sequences,
            " pages; allowed: below 2^31 (give num_pages)");
    o.num_pages = static_cast<int>(each * o.max_sequences);
  }
  return o;
}

}  // namespace pagoda::detail
