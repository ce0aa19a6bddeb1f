// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/error.hpp>
#include <pagoda/plan.hpp>

#if defined(KOKKOS_ENABLE_CUDA)
#include "backends/cuda/stream.hpp"
#endif
#if defined(KOKKOS_ENABLE_HIP)
#include "backends/hip/stream.hpp"
#endif

#include <Kokkos_Core.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace pagoda::detail {

/// An execution space whose kernels have ended when their launch returns: nothing to order.
struct NoStream {};

template <class ExecutionSpace>
struct StreamSelector {
  using type = NoStream;
};
#if defined(KOKKOS_ENABLE_CUDA)
template <>
struct StreamSelector<Kokkos::Cuda> {
  using type = CudaStream;
};
#endif
#if defined(KOKKOS_ENABLE_HIP)
template <>
struct StreamSelector<Kokkos::HIP> {
  using type = HipStream;
};
#endif
template <class ExecutionSpace>
using StreamOf = typename StreamSelector<ExecutionSpace>::type;

template <class ExecutionSpace>
inline constexpr bool has_streams = requires { typename StreamOf<ExecutionSpace>::Event; };

/// Multiprocessors that kernels of the instance may run on; 0 where the space has none.
template <class ExecutionSpace>
int multiprocessors_of([[maybe_unused]] const ExecutionSpace& exec) {
  if constexpr (has_streams<ExecutionSpace>) {
    return StreamOf<ExecutionSpace>::multiprocessors(exec);
  } else {
    return 0;
  }
}

/// A plan's own device memory. plan() initializes it on one instance; decodes may run on others, which enter() orders
/// after that.
template <class ExecutionSpace>
class PlanMemory {
 public:
  PlanMemory(const ExecutionSpace& exec, std::size_t bytes)
      : bytes_(Kokkos::view_alloc(exec, Kokkos::WithoutInitializing, "Pagoda::plan::persistent"), bytes) {
    if constexpr (has_streams<ExecutionSpace>) event_.emplace(exec), device_ = StreamOf<ExecutionSpace>::device(exec);
  }

  std::byte* data() const { return bytes_.data(); }

  /// All of the initialization has been queued on exec, which may use as many multiprocessors as the plan counts on.
  void initialized_by([[maybe_unused]] const ExecutionSpace& exec) {
    if constexpr (has_streams<ExecutionSpace>) {
      event_->record(exec);
      entered_ = entry(StreamOf<ExecutionSpace>::handle(exec), true);
    }
  }

  /// Orders what is queued on exec from now on after the initialization. True: exec may use as many multiprocessors as
  /// the plan counts on. Once the initialization has ended, this costs a comparison where the last call was for the
  /// same stream. Throws InvalidArgument where exec is on another device.
  bool enter([[maybe_unused]] const ExecutionSpace& exec, [[maybe_unused]] int multiprocessors) {
    if constexpr (has_streams<ExecutionSpace>) {
      using Stream = StreamOf<ExecutionSpace>;
      require(Stream::device(exec) == device_, "pagoda::decode: exec is an instance of device ", Stream::device(exec),
              "; allowed: instances of device ", device_, ", which the plan was made on");
      if (!passed_.load(std::memory_order_relaxed)) {
        // A graph may be launched on any stream, and a capture must not depend on work outside of it. So the host waits
        // there: once, and for microseconds.
        const bool capturing = Stream::capturing(exec);
        if (capturing) event_->synchronize();
        if (capturing || event_->passed()) {
          passed_ = true;
        } else {
          event_->precede(exec);
        }
      }
      const std::uintptr_t stream = Stream::handle(exec);
      for (const bool enough : {true, false})
        if (entered_.load(std::memory_order_relaxed) == entry(stream, enough)) return enough;
      if (Stream::capturing(exec)) return true;  // a capture permits no questions about its stream
      const bool enough = Stream::multiprocessors(exec) >= multiprocessors;
      entered_          = entry(stream, enough);
      return enough;
    } else {
      return true;
    }
  }

 private:
  static std::uint64_t entry(std::uintptr_t stream, bool enough) {
    return std::uint64_t(stream) << 1 | std::uint64_t(enough);
  }

  template <class Space>
  struct EventOf {
    using type = NoStream;
  };
  template <class Space>
    requires has_streams<Space>
  struct EventOf<Space> {
    using type = typename StreamOf<Space>::Event;
  };

  Kokkos::View<std::byte*, typename ExecutionSpace::memory_space> bytes_;
  std::optional<typename EventOf<ExecutionSpace>::type> event_;
  int device_ = 0;
  std::atomic<bool> passed_{false};        ///< the initialization is known to have ended
  std::atomic<std::uint64_t> entered_{0};  ///< the stream that entered last, and whether it has enough multiprocessors
};

}  // namespace pagoda::detail
