// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Kokkos_Core.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace pagoda::test {

/// Records the calls to Kokkos during its lifetime. Only one object at a time.
class Watch {
 public:
  struct Seen {
    std::vector<std::string> kernels, allocations, copies, fences;
    std::vector<std::uint32_t>
        devices;  ///< the instance of each kernel, as Kokkos::Tools::Experimental::device_id gives it
  };

  Watch() : before_(Kokkos::Tools::Experimental::get_callbacks()) {
    namespace tools   = Kokkos::Tools::Experimental;
    seen()            = {};
    const auto kernel = [](const char* name, std::uint32_t device, std::uint64_t*) {
      seen().kernels.push_back(name);
      seen().devices.push_back(device);
    };
    tools::set_begin_parallel_for_callback(kernel);
    tools::set_begin_parallel_reduce_callback(kernel);
    tools::set_begin_parallel_scan_callback(kernel);
    // With every team launch Kokkos on CUDA announces an allocation of no bytes (unused scratch).
    tools::set_allocate_data_callback(
        [](Kokkos::Profiling::SpaceHandle, const char* label, const void*, std::uint64_t bytes) {
          if (bytes > 0) seen().allocations.push_back(label);
        });
    tools::set_begin_deep_copy_callback(
        [](Kokkos::Profiling::SpaceHandle, const char* to, const void*, Kokkos::Profiling::SpaceHandle,
           const char* from, const void*, std::uint64_t) { seen().copies.push_back(std::string(from) + " to " + to); });
    tools::set_begin_fence_callback([](const char* name, std::uint32_t, std::uint64_t*) {
      // Kokkos itself fences around callbacks.
      if (std::string(name).find("Tool Fence") == std::string::npos) seen().fences.push_back(name);
    });
  }
  ~Watch() { Kokkos::Tools::Experimental::set_callbacks(before_); }
  Watch(const Watch&)            = delete;
  Watch& operator=(const Watch&) = delete;

  static Seen& seen() {
    static Seen all;
    return all;
  }

 private:
  Kokkos::Tools::Experimental::EventSet before_;
};

/// Two instances of a space other than its default one; with only one thread, the default one. They are kept, as making
/// one is slow on a GPU.
template <class Space>
const std::vector<Space>& instances() {
  static std::vector<Space> two;
  if (two.empty()) {
    const Space whole;
    if (whole.concurrency() < 2) {
      two = {whole, whole};
    } else {
      const auto parts = Kokkos::Experimental::partition_space(whole, 1, 1);
      two              = {parts[0], parts[1]};
    }
    Kokkos::push_finalize_hook([] { two.clear(); });
  }
  return two;
}

}  // namespace pagoda::test
