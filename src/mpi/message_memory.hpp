// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Kokkos_Core.hpp>

#include <cstddef>
#include <string>
#include <type_traits>

namespace pagoda::mpi {

/// Memory that the host cannot access.
template <class ExecutionSpace>
inline constexpr bool has_device_memory_v =
    !Kokkos::SpaceAccessibility<Kokkos::HostSpace, typename ExecutionSpace::memory_space>::accessible;

/// Memory that both the host and kernels of the space access.
template <class ExecutionSpace>
using HostVisibleSpace = typename std::conditional_t<has_device_memory_v<ExecutionSpace>, Kokkos::SharedHostPinnedSpace,
                                                     typename ExecutionSpace::memory_space>::memory_space;

/// Uninitialized bytes in device memory or in host-visible memory.
template <class ExecutionSpace>
class MessageMemory {
 public:
  MessageMemory() = default;
  MessageMemory(const ExecutionSpace& exec, const std::string& label, std::size_t bytes, bool in_device_memory) {
    if (in_device_memory) {
      device_ = decltype(device_)(Kokkos::view_alloc(exec, Kokkos::WithoutInitializing, label), bytes);
    } else {
      host_ = decltype(host_)(Kokkos::view_alloc(Kokkos::WithoutInitializing, label), bytes);
    }
  }
  std::byte* data() const { return device_.data() ? device_.data() : host_.data(); }

 private:
  Kokkos::View<std::byte*, typename ExecutionSpace::memory_space> device_;
  Kokkos::View<std::byte*, HostVisibleSpace<ExecutionSpace>> host_;
};

}  // namespace pagoda::mpi
