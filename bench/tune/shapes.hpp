// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bench/tune/device.hpp"

namespace pagoda::tune {

/// Prints the time of batches in every possible launch shape, with the choice of the cost model, to check the model.
void print_shapes(Device& device);

}  // namespace pagoda::tune
