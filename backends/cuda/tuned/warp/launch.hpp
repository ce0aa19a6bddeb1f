// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/chosen_shape.hpp"

/// The host side of the warp kernels: what dispatch.cu calls for problems that the wgmma kernels do not handle.
namespace pagoda::tuned::warp {

/// Checks what these kernels need beyond what all kernels need.
const char* why_not(const Problem& problem);
/// Whether a block fits a multiprocessor.
bool fits(const Problem& problem, const Device& device);
std::size_t workspace_bytes(const Problem& problem, const Device& device);
/// Loads the kernels.
void prepare(const Problem& problem, const Device& device);
LaunchShape choose_shape(const Problem& problem, const Device& device);
bool decode_with(const LaunchShape& shape, const Problem& problem, const Device& device, void* workspace,
                 CUstream_st* stream);

}  // namespace pagoda::tuned::warp
