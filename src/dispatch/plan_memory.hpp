// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/error.hpp>
#include <pagoda/plan.hpp>

#include "backends/machines.hpp"

#include <Kokkos_Core.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace pagoda::detail {

/// The device memory that a plan owns. plan() initializes it on one instance. Decodes may run on other instances; they
/// call enter(), which orders them after the initialization.
template <class ExecutionSpace>
class PlanMemory {
  using Stream = typename MachineOf<ExecutionSpace>::Stream;

 public:
  PlanMemory(const ExecutionSpace& exec, std::size_t bytes)
      : bytes_(Kokkos::view_alloc(exec, Kokkos::WithoutInitializing, "Pagoda::plan::persistent"), bytes),
        event_(exec),
        device_(Stream::device(exec)) {}

  std::byte* data() const { return bytes_.data(); }

  /// Called when all of the initialization has been queued on exec, which may use the number of multiprocessors that
  /// the plan counts on.
  void initialized_by(const ExecutionSpace& exec) {
    event_.record(exec);
    entered_ = entry(Stream::handle(exec), true);
  }

  /// Orders work that is queued on exec from now on after the initialization. Returns whether exec may use the number
  /// of multiprocessors that the plan counts on. After the initialization has ended, a call for the same stream as the
  /// last one costs one comparison. Throws InvalidArgument if exec is on another device.
  bool enter(const ExecutionSpace& exec, int multiprocessors) {
    require(Stream::device(exec) == device_, "pagoda::decode: exec is an instance of device ", Stream::device(exec),
            "; allowed: instances of device ", device_, ", which the plan was made on");
    if (!passed_.load(std::memory_order_relaxed)) {
      // A graph may be launched on any stream, and a capture must not depend on work outside of it. So during a capture
      // the host waits, once, for microseconds.
      const bool capturing = Stream::capturing(exec);
      if (capturing) event_.synchronize();
      if (capturing || event_.passed()) {
        passed_ = true;
      } else {
        event_.precede(exec);
      }
    }
    const std::uintptr_t stream = Stream::handle(exec);
    for (const bool enough : {true, false})
      if (entered_.load(std::memory_order_relaxed) == entry(stream, enough)) return enough;
    if (Stream::capturing(exec)) return true;  // a capture allows no queries of its stream
    const bool enough = Stream::multiprocessors(exec) >= multiprocessors;
    entered_          = entry(stream, enough);
    return enough;
  }

 private:
  static std::uint64_t entry(std::uintptr_t stream, bool enough) {
    return std::uint64_t(stream) << 1 | std::uint64_t(enough);
  }

  Kokkos::View<std::byte*, typename ExecutionSpace::memory_space> bytes_;
  typename Stream::Event event_;
  int device_;
  std::atomic<bool> passed_{false};        ///< the initialization is known to have ended
  std::atomic<std::uint64_t> entered_{0};  ///< the stream that entered last, and whether it has enough multiprocessors
};

}  // namespace pagoda::detail
