// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/detail/problem.hpp>
#include <pagoda/detail/schedule.hpp>
#include <pagoda/plan.hpp>

#include <cstddef>
#include <span>

namespace pagoda::detail {

/// Kernels that decode on an execution space. A plan chooses the first backend of the list that supports its problem
/// and is not slower than the ones behind it.
template <class ExecutionSpace>
class Backend {
 public:
  Backend()                          = default;
  Backend(const Backend&)            = delete;
  Backend& operator=(const Backend&) = delete;
  virtual ~Backend()                 = default;

  /// The name for DecodeOptions::backend and PAGODA_BACKEND.
  virtual const char* name() const = 0;
  /// Null if the backend can decode the problem with such a schedule on exec's device, else the reason.
  virtual const char* why_not(const ExecutionSpace& exec, const Schedule& schedule, const Problem& problem) const = 0;
  /// Null if no backend behind this one in the list is faster; otherwise a text that says for
  /// which batches one is.
  virtual const char* why_slower(const ExecutionSpace&, const Schedule&, const CacheRef&) const { return nullptr; }
  /// Whether the backend's blocks wait for each other. Then a decode needs as many multiprocessors as the plan.
  virtual bool needs_all_multiprocessors() const { return false; }
  /// Bytes of device memory that keep their contents between decodes.
  virtual std::size_t persistent_bytes(const ExecutionSpace&, const Schedule&) const { return 0; }
  /// Initializes these bytes, at `persistent`, and loads all kernels of the plan, so that neither happens in a decode
  /// or in a graph capture. Asynchronous on exec.
  virtual void prepare(const ExecutionSpace& exec, const Plan<ExecutionSpace>& plan, std::byte* persistent) const = 0;
  /// Launches. Or returns the reason why it does not support the problem, with nothing launched.
  virtual const char* decode(const ExecutionSpace& exec, const Plan<ExecutionSpace>& plan, const Problem& problem,
                             std::byte* persistent) const = 0;
};

/// The backends of an execution space, in order of preference. The last one supports every problem that a plan accepts.
template <class ExecutionSpace>
using BackendList = std::span<const Backend<ExecutionSpace>* const>;

/// Defined in src/dispatch/backends.cpp.
template <class ExecutionSpace>
BackendList<ExecutionSpace> backends();

/// Where a backend's memory begins in the memory that the plan owns. index: in the list.
inline std::size_t persistent_offset(const Schedule& schedule, int index) {
  return index == schedule.backend.index ? schedule.persistent.chosen : schedule.persistent.last;
}

}  // namespace pagoda::detail
