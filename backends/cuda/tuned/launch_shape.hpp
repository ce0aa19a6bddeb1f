// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/tuning.hpp"
#include "backends/cuda/tuned/wgmma/shapes.hpp"

/// `decode` in two steps, so that a program can measure launch shapes that the cost model would not choose.
namespace pagoda::tuned {

/// The shape that `decode` chooses. The problem is not one of wgmma::takes.
Shape shape_of(const Problem& problem, const Device& device);
/// `decode` with another shape: any that `spread` can return for the problem's rows and tiles on a device of whatever
/// speed.
bool decode_as(const Problem& problem, const Device& device, const Shape& shape, void* workspace, CUstream_st* stream);

namespace wgmma {
/// The same for problems of wgmma::takes.
Shape shape_of(const Problem& problem, const Device& device);
bool decode_as(const Problem& problem, const Device& device, const Shape& shape, void* workspace, CUstream_st* stream);
}  // namespace wgmma

}  // namespace pagoda::tuned
