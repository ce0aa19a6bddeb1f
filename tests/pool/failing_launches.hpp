// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Kokkos_Core.hpp>

#include <cstdint>
#include <stdexcept>
#include <string>

namespace pagoda::test {

/// While an object lives, the n-th (from 0) kernel launch or fence throws LaunchFailed before it happens, like a device
/// error. Kokkos' own fences do not count.
class FailingLaunches {
 public:
  struct LaunchFailed : std::runtime_error {
    using std::runtime_error::runtime_error;
  };

  explicit FailingLaunches(int n) : before_(Kokkos::Tools::Experimental::get_callbacks()) {
    namespace tools = Kokkos::Tools::Experimental;
    left()          = n;
    count()         = 0;
    tools::set_begin_parallel_for_callback([](const char* name, std::uint32_t, std::uint64_t*) { step(name); });
    tools::set_begin_fence_callback([](const char* name, std::uint32_t, std::uint64_t*) {
      if (std::string(name).starts_with("Pagoda::")) step(name);
    });
  }
  ~FailingLaunches() { Kokkos::Tools::Experimental::set_callbacks(before_); }
  FailingLaunches(const FailingLaunches&)            = delete;
  FailingLaunches& operator=(const FailingLaunches&) = delete;

  /// Launches and fences so far, including the failed one.
  static int& count() {
    static int seen;
    return seen;
  }

 private:
  static int& left() {
    static int launches;
    return launches;
  }
  static void step(const char* name) {
    ++count();
    if (left()-- == 0) throw LaunchFailed(name);
  }

  Kokkos::Tools::Experimental::EventSet before_;
};

}  // namespace pagoda::test
