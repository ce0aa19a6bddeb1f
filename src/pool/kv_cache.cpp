// SPDX-License-Identifier: Apache-2.0
#include <pagoda/kv_cache.hpp>

#include "src/base/spaces.hpp"
#include "src/pool/huge_pages.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <type_traits>

namespace pagoda::detail {

namespace {

/// Writes zeros, one run of bytes per iteration. On a host the first write of a page places it near the thread that
/// writes.
struct FirstTouch {
  static constexpr std::size_t run = 4096;
  std::byte* data;
  std::size_t bytes;
  void operator()(std::size_t i) const { std::memset(data + i * run, 0, std::min(run, bytes - i * run)); }
};

}  // namespace

template <class ExecutionSpace>
Kokkos::View<std::byte*, typename ExecutionSpace::memory_space> allocate_cache(const ExecutionSpace& exec,
                                                                               const char* label, std::size_t bytes) {
  using Memory            = Kokkos::View<std::byte*, typename ExecutionSpace::memory_space>;
  const std::size_t total = bytes + 1024;
  if constexpr (std::is_same_v<typename ExecutionSpace::memory_space, Kokkos::HostSpace>) {
    const Memory memory(Kokkos::view_alloc(exec, Kokkos::WithoutInitializing, std::string(label)), total);
    ask_for_huge_pages(memory.data(), total);
    using Policy =
        Kokkos::RangePolicy<ExecutionSpace, Kokkos::Schedule<Kokkos::Static>, Kokkos::IndexType<std::size_t>>;
    Kokkos::parallel_for("Pagoda::cache::first_touch", Policy(exec, 0, (total + FirstTouch::run - 1) / FirstTouch::run),
                         FirstTouch{memory.data(), total});
    return memory;
  } else {
    return Memory(Kokkos::view_alloc(exec, std::string(label)), total);
  }
}

#define PAGODA_INSTANTIATE(Space)                                                             \
  template PAGODA_EXPORT Kokkos::View<std::byte*, Space::memory_space> allocate_cache<Space>( \
      const Space&, const char*, std::size_t);
PAGODA_FOR_EACH_SPACE(PAGODA_INSTANTIATE)
#undef PAGODA_INSTANTIATE

}  // namespace pagoda::detail
