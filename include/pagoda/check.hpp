// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/export.hpp>
#include <pagoda/kv_layout.hpp>
#include <pagoda/plan.hpp>

#include <Kokkos_Core.hpp>

#include <cstdint>

namespace pagoda {

namespace detail {

/// Ragged query counts as a decode reads them; data is null where all batch entries have as many.
struct QueryCounts {
  const int* cu_seqlens_q = nullptr;
  std::int64_t num_tokens = 0;  ///< of q
  int max_query_len       = 0;
};

template <class ExecutionSpace>
PAGODA_EXPORT void check(const ExecutionSpace& exec, const CacheRef& kv, const QueryCounts& queries);

}  // namespace detail

/// Looks at what decode cannot look at without waiting: the contents of seq_lens, sequence_ids and the page table, as
/// they are on the device now. Throws InvalidArgument that names the array, the entry, its value and what is allowed;
/// returns if every token that a decode of this cache would read lies inside it. Waits for exec. For debugging and for
/// tables that come from elsewhere; decode itself trusts them.
template <class ExecutionSpace, KVLayout KV>
void check(const ExecutionSpace& exec, const KV& kv) {
  static_assert(Kokkos::SpaceAccessibility<ExecutionSpace, typename KV::memory_space>::accessible,
                "the cache must lie in memory that the execution space can read");
  detail::check(exec, kv.ref(), {});
}

/// The same, and the plan's cu_seqlens_q for a decode of these queries: q is (query token, q head, head_dim).
template <class ExecutionSpace, class Q, KVLayout KV>
void check(const ExecutionSpace& exec, const Plan<ExecutionSpace>& plan, const Q& q, const KV& kv) {
  static_assert(Kokkos::SpaceAccessibility<ExecutionSpace, typename KV::memory_space>::accessible,
                "the cache must lie in memory that the execution space can read");
  const detail::PlanState& state = plan.state();
  detail::require(kv.batch() < state.cu_seqlens_entries || !state.cu_seqlens_q, "pagoda::check: the cache's batch is ",
                  kv.batch(), "; allowed: fewer than the ", state.cu_seqlens_entries,
                  " entries of the plan's cu_seqlens_q");
  detail::check(exec, kv.ref(), {state.cu_seqlens_q, static_cast<std::int64_t>(q.extent(0)), state.max_query_len});
}

}  // namespace pagoda
