// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Kokkos_Core.hpp>

#include <cstddef>
#include <string>
#include <type_traits>

namespace pagoda::detail {

/// A ring of memory that host and device share. The host writes small lists there for kernels, so nothing is copied.
/// When the ring is full, exec is fenced and the ring starts again.
template <class ExecutionSpace>
class StagingRing {
  static constexpr bool on_host = std::is_same_v<typename ExecutionSpace::memory_space, Kokkos::HostSpace>;

 public:
  using Space = std::conditional_t<on_host, Kokkos::HostSpace, Kokkos::SharedHostPinnedSpace>;

  explicit StagingRing(std::size_t bytes)
      : memory_(Kokkos::view_alloc(Kokkos::WithoutInitializing, "Pagoda::KVPool::staging"), bytes) {}

  /// Bytes to take at once if a list can be divided: a quarter of the ring, so that little of its end is left unused.
  std::size_t limit() const { return memory_.extent(0) / 4; }

  /// Returns memory aligned to 16 bytes that stays valid until the kernels launched next on exec have run. bytes: at
  /// most the size of the ring.
  std::byte* take(const ExecutionSpace& exec, std::size_t bytes) {
    const std::size_t rounded = (bytes + 15) / 16 * 16;
    if (used_ + rounded > memory_.extent(0)) {
      exec.fence(fence_label_);
      used_ = 0;
    }
    std::byte* const at = memory_.data() + used_;
    used_ += rounded;
    return at;
  }

 private:
  Kokkos::View<std::byte*, Space> memory_;
  std::size_t used_ = 0;
  const std::string fence_label_{"Pagoda::KVPool: the staging ring is full"};  // made once: a step must not allocate
};

}  // namespace pagoda::detail
