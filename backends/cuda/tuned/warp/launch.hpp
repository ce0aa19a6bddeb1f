// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/chosen_shape.hpp"

/// The host side of the warp kernels: what dispatch.cu calls for problems that the wgmma kernels do not handle, and for
/// lists that both kinds of kernels support.
namespace pagoda::tuned::warp {

/// Whether the problem is a list that these kernels support.
bool takes_list(const Problem& problem, const Device& device);

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
