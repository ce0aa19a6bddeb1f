// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bench/tune/device.hpp"

namespace pagoda::tune {

/// Prints what batches take in every launch shape there is for them, beside the one that the cost model chooses: what
/// the model's form is checked against.
void print_shapes(Device& device);

}  // namespace pagoda::tune
