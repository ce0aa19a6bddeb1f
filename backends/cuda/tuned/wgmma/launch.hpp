// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/decode.hpp"

/// The kernels for many query rows to a kv head, as tuned/decode.hpp has it; behind that one.
namespace pagoda::tuned::wgmma {

/// Whether problems of this shape are these kernels', or nobody's: latent caches, more than eight query heads to a kv
/// head, several query tokens.
bool takes(const Problem& problem);

/// Beyond what holds for all kernels.
const char* why_not(const Problem& problem, const Device& device);
std::size_t workspace_bytes(const Problem& problem, const Device& device);
void prepare(const Problem& problem, const Device& device, void* workspace, CUstream_st* stream);
bool decode(const Problem& problem, const Device& device, void* workspace, CUstream_st* stream);

}  // namespace pagoda::tuned::wgmma
