// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bench/study/session.hpp"

#include <pagoda/kv_capacity.hpp>
#include <pagoda/kv_pool.hpp>

namespace pagoda::bench::study {

/// K3: admits sequences until the pool has no room. Their rows are not written, as only the allocation counts.
template <class Pool>
Outcome fill_pool(const Exec& exec, const StudyCase& c, const PoolOptions& options, std::int64_t expected) {
  Pool pool(exec, options);
  exec.fence("Pagoda::bench::pool");
  const Kokkos::Timer timer;
  std::int64_t sequences = 0;
  for (; pool.can_admit(c.tokens); ++sequences) pool.admit(exec, c.tokens);
  exec.fence("Pagoda::bench::admitted");
  const double each = timer.seconds() / static_cast<double>(std::max<std::int64_t>(sequences, 1));
  Outcome o{each,
            {{"us", each * 1e6},
             {"sequences", static_cast<double>(sequences)},
             {"waste_pct", 100 * pool.waste()},
             {"bytes_allocated", static_cast<double>(pool.bytes_allocated())}},
            "backend: generic; time of an admission",
            {}};
  if (sequences != expected)
    o.fault = pagoda::detail::concat("the pool admitted ", sequences, " sequences; sequences_that_fit says ", expected);
  return o;
}

inline Outcome capacity(const Exec& exec, const StudyCase& c) {
  constexpr int head_dim   = 128;
  const std::int64_t token = bytes_per_token(1, head_dim, DType::fp32);
  const int page           = c.page_size > 0 ? c.page_size : c.max_seq_len;
  const auto fit           = sequences_that_fit(c.budget, token, c.tokens, page);
  PoolOptions o{.num_kv_heads = 1, .head_dim = head_dim, .max_seq_len = c.max_seq_len};
  if (c.page_size == 0) {
    o.max_sequences = static_cast<int>(c.budget / (token * c.max_seq_len));
    return fill_pool<ContiguousPool<float, Exec>>(exec, c, o, fit);
  }
  o.max_sequences = static_cast<int>(fit) + 1;  // memory must run out before slots
  o.page_size     = c.page_size;
  o.num_pages     = static_cast<int>(c.budget / (token * c.page_size));
  return fill_pool<PagedPool<float, Exec>>(exec, c, o, fit);
}

}  // namespace pagoda::bench::study
