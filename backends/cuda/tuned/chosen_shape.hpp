// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/common/cost_model.hpp"

/// `decode` in two steps, so that a program can measure launch shapes that the cost model would not choose.
namespace pagoda::tuned {

/// The shape that `decode` chooses.
LaunchShape choose_shape(const Problem& problem, const Device& device);

/// Decodes with another shape: any shape that the cost model can choose for the problem, on a device of any speed.
bool decode_with(const LaunchShape& shape, const Problem& problem, const Device& device, void* workspace,
                 CUstream_st* stream);

}  // namespace pagoda::tuned
