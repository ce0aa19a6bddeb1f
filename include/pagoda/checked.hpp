// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/export.hpp>
#include <pagoda/plan.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace pagoda {

/// What a decode of a checked plan (DecodeOptions::checked) found wrong with a batch entry: its first fault.
struct TableFault {
  int entry          = 0;   ///< batch entry
  int sequence       = -1;  ///< the sequence it names; -1 if its range in cu_seqlens_q is wrong
  int page           = -1;  ///< position in the sequence's page list of a page id outside of the cache; otherwise -1
  std::int64_t value = 0;   ///< what the array held
  std::string message{};    ///< the array, the position, the value and what is allowed
};

namespace detail {

template <class ExecutionSpace>
PAGODA_EXPORT std::vector<TableFault> faults_of(const ExecutionSpace& exec, const Plan<ExecutionSpace>& plan);

}  // namespace detail

/// The faults of the plan's last decode with query tokens, at most one for each batch entry, in their order; none
/// before the first decode. They are the faults that check(exec, plan, q, kv) finds. exec: an instance on which that
/// decode has been queued, or which waits for it. Copies the report from the device and fences exec; not during a
/// capture.
///
/// An entry whose range in cu_seqlens_q is wrong leaves open where the query tokens of later entries begin: all rows
/// from its first query token on become NaN.
///
/// Throws InvalidArgument if the plan is not checked.
template <class ExecutionSpace>
std::vector<TableFault> faults(const ExecutionSpace& exec, const Plan<ExecutionSpace>& plan) {
  return detail::faults_of(exec, plan);
}

/// The number of batch entries with a fault in the plan's last decode. As faults.
template <class ExecutionSpace>
int fault_count(const ExecutionSpace& exec, const Plan<ExecutionSpace>& plan) {
  return static_cast<int>(detail::faults_of(exec, plan).size());
}

}  // namespace pagoda
