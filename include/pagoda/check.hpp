// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/detail/execution_space.hpp>
#include <pagoda/detail/problem.hpp>
#include <pagoda/entries.hpp>
#include <pagoda/export.hpp>
#include <pagoda/kv_layout.hpp>
#include <pagoda/plan.hpp>

#include <Kokkos_Core.hpp>

#include <cstdint>

namespace pagoda {

namespace detail {

/// Ragged query counts as a decode reads them; data is null where all batch entries have the same number.
struct QueryCounts {
  const int* cu_seqlens_q = nullptr;
  std::int64_t num_tokens = 0;  ///< rows of q
  int max_query_len       = 0;
};

template <class ExecutionSpace>
PAGODA_EXPORT void check(const ExecutionSpace& exec, const CacheRef& kv, const QueryCounts& queries);

/// The numbers that a list is checked against.
struct ListLimits {
  std::int64_t num_tokens = 0;  ///< rows of q
  int num_states          = 0;
  int num_kv_heads        = 0;
  int max_queries         = 0;
  bool chains             = false;
};

template <class ExecutionSpace>
PAGODA_EXPORT void check(const ExecutionSpace& exec, const CacheRef& kv, const EntriesRef& list,
                         const ListLimits& limits);

}  // namespace detail

/// Checks the contents of seq_lens, sequence_ids and the page table as they are on the device now. decode reads these
/// arrays without checking them, because a check would have to wait for the device. Use this function for debugging,
/// and for tables from a source that you do not trust. It returns if a decode reads no token outside of the cache.
/// Waits for exec.
///
/// Throws InvalidArgument, which names the array, the entry, its value and what is allowed.
template <class ExecutionSpace, KVLayout KV>
void check(const ExecutionSpace& exec, const KV& kv) {
  detail::check_execution_space<ExecutionSpace>();
  static_assert(Kokkos::SpaceAccessibility<ExecutionSpace, typename KV::memory_space>::accessible,
                "the cache must lie in memory that the execution space can read");
  detail::check(exec, kv.ref(), {});
}

/// Checks the same arrays, and the plan's cu_seqlens_q for a decode of these queries. q: (query token, q head,
/// head_dim).
template <class ExecutionSpace, class Q, KVLayout KV>
void check(const ExecutionSpace& exec, const Plan<ExecutionSpace>& plan, const Q& q, const KV& kv) {
  static_assert(Kokkos::SpaceAccessibility<ExecutionSpace, typename KV::memory_space>::accessible,
                "the cache must lie in memory that the execution space can read");
  const detail::Schedule& schedule = plan.schedule();
  const int* const cu_seqlens_q    = plan.options().cu_seqlens_q.data();
  const int entries                = schedule.bounds.cu_seqlens_entries;
  detail::require(kv.batch() < entries || !cu_seqlens_q, "pagoda::check: the cache's batch is ", kv.batch(),
                  "; allowed: fewer than the ", entries, " entries of the plan's cu_seqlens_q");
  detail::check(exec, kv.ref(), {cu_seqlens_q, static_cast<std::int64_t>(q.extent(0)), schedule.bounds.max_query_len});
}

/// Checks a list of entries, the lengths and the page table for a decode_entries of these queries. It returns if the
/// decode reads and writes only its arrays, with at most the plan's entries.max_queries query tokens in an entry.
/// num_states: extent of the partial states.
template <class ExecutionSpace, class Q, KVLayout KV>
void check(const ExecutionSpace& exec, const Plan<ExecutionSpace>& plan, const Q& q, const KV& kv,
           const DeviceEntries<typename ExecutionSpace::memory_space>& list, int num_states) {
  static_assert(Kokkos::SpaceAccessibility<ExecutionSpace, typename KV::memory_space>::accessible,
                "the cache must lie in memory that the execution space can read");
  const detail::Schedule& schedule = plan.schedule();
  detail::check(exec, kv.ref(), list.ref(),
                {static_cast<std::int64_t>(q.extent(0)), num_states, schedule.shape.num_kv_heads,
                 schedule.bounds.max_entry_queries, schedule.bounds.chains});
}

}  // namespace pagoda
