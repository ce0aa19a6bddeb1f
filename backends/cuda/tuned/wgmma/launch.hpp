// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/chosen_shape.hpp"

/// The host side of the wgmma kernels: what dispatch.cu calls for problems that `handles` accepts.
namespace pagoda::tuned::wgmma {

/// Whether problems of this shape belong to these kernels: latent caches, more than eight query heads to a kv head,
/// several query tokens, lists.
bool handles(const Problem& problem);

/// Checks what these kernels need beyond what all kernels need.
const char* why_not(const Problem& problem, const Device& device);
std::size_t workspace_bytes(const Problem& problem, const Device& device);
/// Loads the kernel.
void prepare(const Problem& problem, const Device& device);
LaunchShape choose_shape(const Problem& problem, const Device& device);
bool decode_with(const LaunchShape& shape, const Problem& problem, const Device& device, void* workspace,
                 CUstream_st* stream);

}  // namespace pagoda::tuned::wgmma
