// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/speed.hpp"

#include <span>
#include <string>
#include <string_view>

/// The file in which pagoda-tune stores what it measured on a device. The library reads it once for each device of a
/// process. Plain text of lines "key = value"; "#" begins a comment:
///
///     pagoda-tuning = 1
///     device = NVIDIA H100 80GB HBM3
///     bytes_per_us = 3.13e+06  # built in: 3.126e+06
///
/// The first two lines are required, in this order. "device = any" fits every device. Numbers that are left out keep
/// their built-in values. A file that breaks a rule is ignored as a whole.
namespace pagoda::tuned {

/// A number of a tuning file: its key, and the values that are accepted.
struct TuningKey {
  std::string_view name;
  double Speed::* member;
  double least, most;
};
std::span<const TuningKey> tuning_keys();

/// Path of the device's file: PAGODA_TUNING in the environment, or else tuning-DEVICE.txt in $XDG_CACHE_HOME/pagoda or
/// ~/.cache/pagoda, with "-" for every character of the name that is not a letter or digit. Empty if PAGODA_TUNING is
/// empty, or if there is no home directory.
std::string tuning_path(std::string_view device_name);

/// Applies the text. Returns an empty string, or the error, with `speed` unchanged.
std::string parse_tuning(std::string_view text, std::string_view device_name, Speed& speed);

/// Reads the device's file into `speed`. Returns an empty string on success or if no file exists; else the file's name
/// and the error, with `speed` unchanged. A file that PAGODA_TUNING names must exist.
std::string read_tuning_file(std::string_view device_name, Speed& speed);

}  // namespace pagoda::tuned
