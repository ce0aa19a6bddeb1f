// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/kv_layout.hpp>

#include <Kokkos_Core.hpp>

namespace pagoda {

namespace detail {

template <class ExecutionSpace>
void check(const ExecutionSpace& exec, const CacheRef& kv);

}  // namespace detail

/// Looks at what decode cannot look at without waiting: the contents of seq_lens, sequence_ids and the page table, as
/// they are on the device now. Throws InvalidArgument that names the array, the entry, its value and what is allowed;
/// returns if every token that a decode of this cache would read lies inside it. Waits for exec. For debugging and for
/// tables that come from elsewhere; decode itself trusts them.
template <class ExecutionSpace, KVLayout KV>
void check(const ExecutionSpace& exec, const KV& kv) {
  static_assert(Kokkos::SpaceAccessibility<ExecutionSpace, typename KV::memory_space>::accessible,
                "the cache must lie in memory that the execution space can read");
  detail::check(exec, kv.ref());
}

}  // namespace pagoda
