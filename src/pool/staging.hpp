// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Kokkos_Core.hpp>

#include <cstddef>
#include <type_traits>

namespace pagoda::detail {

/// Where the host leaves small lists for kernels to read: memory that both see, given out in turn. Nothing is copied
/// and nobody waits until the ring is full; then everything launched so far is waited for, and it starts again.
template <class ExecutionSpace>
class StagingRing {
  static constexpr bool on_host = std::is_same_v<typename ExecutionSpace::memory_space, Kokkos::HostSpace>;

 public:
  using Space = std::conditional_t<on_host, Kokkos::HostSpace, Kokkos::SharedHostPinnedSpace>;

  explicit StagingRing(std::size_t bytes)
      : memory_(Kokkos::view_alloc(Kokkos::WithoutInitializing, "Pagoda::KVPool::staging"), bytes) {}

  /// Bytes that one call of take may ask for: a quarter, so that it is rarely the end that is missing.
  std::size_t limit() const { return memory_.extent(0) / 4; }

  /// Memory aligned to 16 bytes that stays as written until what is launched on exec now has run.
  std::byte* take(const ExecutionSpace& exec, std::size_t bytes) {
    const std::size_t rounded = (bytes + 15) / 16 * 16;
    if (used_ + rounded > memory_.extent(0)) {
      exec.fence("Pagoda::KVPool: the staging ring is full");
      used_ = 0;
    }
    std::byte* const at = memory_.data() + used_;
    used_ += rounded;
    return at;
  }

 private:
  Kokkos::View<std::byte*, Space> memory_;
  std::size_t used_ = 0;
};

}  // namespace pagoda::detail
