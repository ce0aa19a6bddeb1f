// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/detail/problem.hpp>
#include <pagoda/plan.hpp>

#include "src/dispatch/examine.hpp"
#include "src/plan/workspace.hpp"

#include <cstddef>

/// Checked plans: a kernel before the decode examines lengths, ids, page tables and query counts and copies them,
/// without the faulty ones, into the plan's memory, from which the decode reads; a kernel behind it writes NaN.
namespace pagoda::detail {

/// The memory of a checked plan.
struct CheckedArrays {
  int* num_entries  = nullptr;  ///< batch entries of the last decode
  int* seq_lens     = nullptr;  ///< [max_sequences], 0 for sequences with a fault
  int* sequence_ids = nullptr;  ///< [max_batch], 0 for ids outside of the cache
  int* cu_seqlens_q = nullptr;  ///< [max_batch + 1], constant from the first entry with a fault on
  Finding* findings = nullptr;  ///< [max_batch]
  std::size_t bytes = 0;

  /// memory: all that the plan owns.
  CheckedArrays(const Schedule& s, std::byte* memory) {
    Allocator space;
    std::byte* const at = memory ? memory + s.persistent.checked : nullptr;
    const auto take     = [&]<class T>(T*& array, std::size_t n) {
      const std::size_t offset = space.take(n * sizeof(T));
      if (at) array = reinterpret_cast<T*>(at + offset);
    };
    const std::size_t batch = static_cast<std::size_t>(s.bounds.max_batch);
    take(num_entries, 1);
    take(seq_lens, static_cast<std::size_t>(s.checked.max_sequences) + 1);
    take(sequence_ids, batch);
    take(cu_seqlens_q, batch + 1);
    take(findings, batch);
    bytes = space.used;
  }
};

inline std::size_t checked_bytes(const Schedule& s) { return CheckedArrays(s, nullptr).bytes; }

/// Clears the report and loads the kernels.
template <class ExecutionSpace>
void prepare_checked(const ExecutionSpace& exec, const Plan<ExecutionSpace>& plan);

/// Launches the examination. Returns the problem with the copies.
template <class ExecutionSpace>
Problem examine_tables(const ExecutionSpace& exec, const Plan<ExecutionSpace>& plan, const Problem& problem);

/// Launches the kernel that writes NaN to the rows of sequences with a fault.
template <class ExecutionSpace>
void poison_faulty(const ExecutionSpace& exec, const Plan<ExecutionSpace>& plan, const Problem& problem);

}  // namespace pagoda::detail
