// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bench/tune/device.hpp"

#include <cstddef>
#include <vector>

namespace pagoda::tune {

/// Measures every number of the cost model. A number whose kernels the device lacks keeps its built-in value.
tuned::Speed measure_speed(Device& device);

/// Effect of other numbers on a list of batches.
struct Gain {
  int batches = 0, changed = 0;  ///< batches with another launch shape
  double mean = 1, worst = 1;  ///< time over the time with the built-in numbers: geometric mean over `changed`, largest
};

/// Times batches in the shapes that both sets of numbers choose. Times are cached for later calls.
class GainMeter {
 public:
  explicit GainMeter(Device& device) : device_(device) {}
  Gain of(const tuned::Speed& speed);

 private:
  double us_of(std::size_t batch, const tuned::LaunchShape& shape);

  Device& device_;
  struct Known {
    std::size_t batch;
    tuned::LaunchShape shape;
    double us;
  };
  std::vector<Known> known_;
};

}  // namespace pagoda::tune
