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
  /// Null if no later backend in the list is faster; otherwise a text that names the batches for which one is. With
  /// fixed splits the answer follows from the shape and the options alone.
  virtual const char* why_slower(const ExecutionSpace&, const Schedule&, const CacheRef&) const { return nullptr; }
  /// Whether decodes of a plan need all multiprocessors that it counts on, because the backend's blocks wait for each
  /// other and their number decides the result.
  virtual bool needs_all_multiprocessors(const Schedule&) const { return false; }
  /// Bytes of device memory that keep their contents between decodes.
  virtual std::size_t persistent_bytes(const ExecutionSpace&, const Schedule&) const { return 0; }
  /// Initializes these bytes, at `persistent`, and loads all kernels of the plan, so that decodes and graph captures do
  /// neither. Asynchronous on exec.
  virtual void prepare(const ExecutionSpace& exec, const Plan<ExecutionSpace>& plan, std::byte* persistent) const = 0;
  /// Launches the decode, or launches nothing and returns the reason why the backend does not support the problem.
  virtual const char* decode(const ExecutionSpace& exec, const Plan<ExecutionSpace>& plan, const Problem& problem,
                             std::byte* persistent) const = 0;
};

/// The backends of an execution space, in order of preference. The last one supports every problem that a plan accepts.
template <class ExecutionSpace>
using BackendList = std::span<const Backend<ExecutionSpace>* const>;

/// Defined in src/dispatch/backends.cpp.
template <class ExecutionSpace>
BackendList<ExecutionSpace> backends();

/// Offset of a backend's memory in the memory that the plan owns. index: index of the backend in the list.
inline std::size_t persistent_offset(const Schedule& schedule, int index) {
  return index == schedule.backend.index ? schedule.persistent.chosen : schedule.persistent.last;
}

}  // namespace pagoda::detail
