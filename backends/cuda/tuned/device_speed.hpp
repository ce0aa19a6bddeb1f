// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/decode.hpp"

#include <string>

namespace pagoda::tuned {

/// The name CUDA gives a device: "NVIDIA H100 80GB HBM3".
std::string device_name(int device_id);

/// Speed of the device without a tuning file. d: sm and num_sms are set.
Speed built_in_speed(const Device& d, int device_id);

/// Sets d.speed: built in, or from the device's tuning file if there is one (tuning_file.hpp). If a file cannot be
/// used, prints its name and the reason on standard error.
void set_speed(Device& d, int device_id);

}  // namespace pagoda::tuned
