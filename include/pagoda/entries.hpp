// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/decode.hpp>
#include <pagoda/detail/problem.hpp>
#include <pagoda/entry.hpp>
#include <pagoda/export.hpp>
#include <pagoda/merge.hpp>
#include <pagoda/plan.hpp>

#include <Kokkos_Core.hpp>

#include <cstdint>
#include <type_traits>
#include <utility>

/// @file
/// Decodes of lists of entries.
namespace pagoda {

/// A list of entries in memory of the execution space.
template <class MemorySpace>
struct DeviceEntries {
  Kokkos::View<const Entry*, MemorySpace> entries;        ///< all of them are carried out
  Kokkos::View<const EntryQuery*, MemorySpace> queries;   ///< what Entry::query_begin refers to
  Kokkos::View<const int*, MemorySpace> state_begin;      ///< [query tokens + 1]; empty: no entry writes partial states
  Kokkos::View<const std::uint64_t*, MemorySpace> masks;  ///< empty: no query token has a mask

  DeviceEntries() {}  // a body: GCC 12 miscompiles a defaulted constructor of Views alone
  /// The arrays of a list. Without states or masks, leave the last Views empty.
  DeviceEntries(const Kokkos::View<const Entry*, MemorySpace>& list_entries,
                const Kokkos::View<const EntryQuery*, MemorySpace>& list_queries,
                const Kokkos::View<const int*, MemorySpace>& states          = {},
                const Kokkos::View<const std::uint64_t*, MemorySpace>& words = {})
      : entries(list_entries), queries(list_queries), state_begin(states), masks(words) {}

  /// Entries first to last - 1, with all queries, states and masks.
  DeviceEntries part(int first, int last) const {
    DeviceEntries p = *this;
    p.entries       = Kokkos::subview(entries, std::pair(first, last));
    return p;
  }
  /// For the library.
  detail::EntriesRef ref() const {
    return {entries.data(),
            queries.data(),
            state_begin.data(),
            masks.data(),
            static_cast<int>(entries.extent(0)),
            static_cast<int>(queries.extent(0)),
            static_cast<int>(state_begin.extent(0)),
            static_cast<int>(masks.extent(0))};
  }
};

/// Partial states: normalised outputs and natural log-sum-exps, as decode writes them. Without tokens a state is 0 and
/// -infinity.
template <class Out, class Lse>
struct EntryStates {
  Out out;  ///< (state, q head, head_dim_v): fp32, or fp16 or bf16, which halves the traffic and rounds each state
  Lse lse;  ///< (state, q head): float or double
};
/// EntryStates{out, lse} deduces the Views.
template <class Out, class Lse>
EntryStates(const Out&, const Lse&) -> EntryStates<Out, Lse>;

namespace detail {

/// Checks the problem, whose `entries` are given, against the plan and launches.
template <class ExecutionSpace>
PAGODA_EXPORT void decode_entries(const ExecutionSpace& exec, const Plan<ExecutionSpace>& plan, const Problem& problem);

/// The same, but only the plan's backend is asked. Returns whether it supports the problem; else nothing is launched.
template <class ExecutionSpace>
bool try_decode_entries(const ExecutionSpace& exec, const Plan<ExecutionSpace>& plan, const Problem& problem);

/// Merges the partial states of p into p.out and p.lse. sinks: [num_q_heads], or null.
template <class ExecutionSpace>
PAGODA_EXPORT void merge_entries(const ExecutionSpace& exec, const Problem& p, const float* sinks);

template <class MemorySpace, class Q, class Out, class Lse, class StateOut, class StateLse>
Problem entries_problem(const Q& q, const CacheRef& kv, const DeviceEntries<MemorySpace>& list, const Out& out,
                        const Lse& lse, const EntryStates<StateOut, StateLse>& states) {
  Problem p{kv, tensor_ref(q), tensor_ref(out), tensor_ref(lse)};
  p.entries   = list.ref();
  p.state_out = tensor_ref(states.out), p.state_lse = tensor_ref(states.lse);
  return p;
}

/// Requirements on outputs and partial states.
template <class ExecutionSpace, class Out, class Lse, class StateOut, class StateLse>
constexpr void check_entry_views() {
  check_merge_views<ExecutionSpace, Out, Lse>();
  check_state_views<ExecutionSpace, StateOut, StateLse>();
  static_assert(StateOut::rank() == 3 && StateLse::rank() == 2,
                "states are (state, q head, head_dim_v) and (state, q head)");
}

}  // namespace detail

/// Decodes a list of entries with a plan whose options have `entries` bounds. Entries with state < 0 write out and lse,
/// the others write `states`, which merge_entries then merges. q, kv, out and lse are as for decode, but rows of q
/// belong to batch entries only through the list.
///
/// Execution: one kernel, asynchronous on exec, that allocates and fences nothing. The list's arrays are read when the
/// kernel runs.
///
/// Speed: an entry's tokens are read once for each row tile of its query rows (query tokens times query heads of a kv
/// head). The hand-tuned kernels of sm_90, for caches of fp16 and bf16 (64 or 128 dims), fp8 and int8 (128 dims), have
/// tiles of up to 128 rows, and support a plan only if entries of max_queries query tokens fit one tile. So divide the
/// query tokens of larger trees of drafts into several entries of the same tokens. Tiles of the generic kernel have 8
/// rows, in some kernels 1 to 32. Plan::describe says which kernel a plan has.
///
/// Not for lists: a sliding window (the plan refuses it), and masks beside alibi_slopes.
///
/// Throws what decode throws. The contents of the list are not checked: check(exec, plan, q, kv, list, num_states)
/// does.
template <class ExecutionSpace, class Q, KVLayout KV, class Out, class Lse, class StateOut, class StateLse>
void decode_entries(const ExecutionSpace& exec, const Plan<ExecutionSpace>& plan, const Q& q, const KV& kv,
                    const DeviceEntries<typename ExecutionSpace::memory_space>& list, const Out& out, const Lse& lse,
                    const EntryStates<StateOut, StateLse>& states) {
  static_assert(Q::rank() == 3, "q is a View of rank 3: (query token, q head, head_dim)");
  detail::check_entry_views<ExecutionSpace, Out, Lse, StateOut, StateLse>();
  static_assert(!std::is_const_v<typename StateOut::value_type> && !std::is_const_v<typename StateLse::value_type>,
                "states are written: their elements cannot be const");
  static_assert(Kokkos::SpaceAccessibility<ExecutionSpace, typename KV::memory_space>::accessible &&
                    Kokkos::SpaceAccessibility<ExecutionSpace, typename Q::memory_space>::accessible,
                "q and the cache must lie in memory that the execution space can read");
  detail::decode_entries(exec, plan, detail::entries_problem(q, kv.ref(), list, out, lse, states));
}

/// Merges the partial states of each query token that has any: out = sum_i exp(lse_i - lse) out_i, in the order of the
/// states. Query tokens without partial states are left as they are. The plan's sinks are added here, once.
///
/// Execution: one kernel, asynchronous on exec, that allocates and fences nothing.
///
/// Throws InvalidArgument if shapes do not agree with each other, the list and the plan, or an array with elements has
/// a null pointer.
template <class ExecutionSpace, class StateOut, class StateLse, class Out, class Lse>
void merge_entries(const ExecutionSpace& exec, const Plan<ExecutionSpace>& plan,
                   const DeviceEntries<typename ExecutionSpace::memory_space>& list,
                   const EntryStates<StateOut, StateLse>& states, const Out& out, const Lse& lse) {
  detail::check_entry_views<ExecutionSpace, Out, Lse, StateOut, StateLse>();
  detail::Problem p{};
  p.entries   = list.ref();
  p.state_out = tensor_ref(states.out), p.state_lse = tensor_ref(states.lse);
  p.out = tensor_ref(out), p.lse = tensor_ref(lse);
  const int heads = plan.schedule().shape.num_q_heads;
  detail::require(p.out.extent[1] == heads, "pagoda::merge_entries: out has ", p.out.extent[1],
                  " heads; allowed: the plan's num_q_heads = ", heads);
  detail::merge_entries(exec, p, plan.schedule().options.sinks);
}

}  // namespace pagoda
