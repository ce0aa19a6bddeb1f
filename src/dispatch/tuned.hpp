// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/plan.hpp>
#include <pagoda/problem.hpp>

#include <cstddef>

/// The hand-tuned kernels behind the dispatch: backends/cuda/tuned for Kokkos::Cuda, none for other spaces.
namespace pagoda::detail {

/// Null if they can carry out the problem with such a plan on exec's device, else the reason.
template <class ExecutionSpace>
const char* why_not_tuned(const ExecutionSpace& exec, const PlanState& state, const Problem& problem);

/// A problem of the plan's cache with queries and outputs as they usually are: what a plan is chosen for.
Problem usual_problem(const PlanState& state, const CacheRef& kv);

/// Null where they are as fast as the generic kernel or faster; otherwise the batches in which that one is faster.
template <class ExecutionSpace>
const char* why_not_faster(const ExecutionSpace& exec, const PlanState& state, const CacheRef& kv);

/// Bytes that persist between decodes, for a device with the plan's multiprocessors.
template <class ExecutionSpace>
std::size_t tuned_workspace_bytes(const ExecutionSpace& exec, const PlanState& state);
template <class ExecutionSpace>
void prepare_tuned(const ExecutionSpace& exec, const PlanState& state, void* memory);
/// Launches; or, with nothing launched, gives the reason why it cannot.
template <class ExecutionSpace>
const char* decode_tuned(const ExecutionSpace& exec, const PlanState& state, const Problem& problem, void* memory);

}  // namespace pagoda::detail
