// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Kokkos_Core.hpp>

#include <fstream>
#include <sstream>
#include <string>
#include <type_traits>

namespace pagoda::bench {

/// The machine of the measurements.
struct Machine {
  std::string execution_space;
  std::string device;
  int concurrency = 0;
  std::string configuration;  ///< Kokkos' configuration as it prints it

  static constexpr bool is_host =
      Kokkos::SpaceAccessibility<Kokkos::HostSpace, Kokkos::DefaultExecutionSpace::memory_space>::accessible;
};

template <class ExecutionSpace>
std::string device_name([[maybe_unused]] const ExecutionSpace& exec) {
#if defined(KOKKOS_ENABLE_CUDA)
  if constexpr (std::is_same_v<ExecutionSpace, Kokkos::Cuda>) return exec.cuda_device_prop().name;
#endif
#if defined(KOKKOS_ENABLE_HIP)
  if constexpr (std::is_same_v<ExecutionSpace, Kokkos::HIP>) return exec.hip_device_prop().name;
#endif
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "CPU";
}

template <class ExecutionSpace>
Machine describe_machine(const ExecutionSpace& exec) {
  std::ostringstream configuration;
  Kokkos::print_configuration(configuration, false);
  return {ExecutionSpace::name(), device_name(exec), exec.concurrency(), configuration.str()};
}

}  // namespace pagoda::bench
