// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/tuned/device_speed.hpp"

#include "backends/cuda/tuned/common/launch.hpp"
#include "backends/cuda/tuned/tuning_file.hpp"
#include "src/base/warnings.hpp"

#include <cstdio>

namespace pagoda::tuned {

std::string device_name(int device_id) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device_id), "cudaGetDeviceProperties");
  return properties.name;
}

Speed built_in_speed(const Device& d, int device_id) {
  const std::string name = device_name(device_id);
  const auto ask         = [&](cudaDeviceAttr what) {
    int value = 0;
    return cudaDeviceGetAttribute(&value, what, device_id) == cudaSuccess ? value : 0;
  };
  return built_in_speed({name, d.sm, d.num_sms, ask(cudaDevAttrClockRate), ask(cudaDevAttrMemoryClockRate),
                         ask(cudaDevAttrGlobalMemoryBusWidth)});
}

void set_speed(Device& d, int device_id) {
  d.speed                  = built_in_speed(d, device_id);
  const std::string reason = read_tuning_file(device_name(device_id), d.speed);
  if (!reason.empty() && pagoda::detail::warnings_enabled())
    std::fprintf(stderr, "Pagoda: the tuning file is ignored: %s\n", reason.c_str());
}

}  // namespace pagoda::tuned
