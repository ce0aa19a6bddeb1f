// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/decode.hpp"

/// The kernel for many query rows to a kv head, as decode.hpp has it; behind that one.
namespace pagoda::tuned::many {

constexpr bool is_head_dim(int head_dim) { return head_dim == 576; }
/// Whether problems of this shape are this kernel's, or nobody's.
constexpr bool takes(Type type, int head_dim, int head_dim_v) {
  return is_head_dim(head_dim) && head_dim_v == 512 && (type == Type::fp16 || type == Type::bf16);
}

/// Beyond what holds for all kernels.
const char* why_not(const Problem& problem, const Device& device);
std::size_t workspace_bytes(int group, const Device& device);
void prepare(Type type, int group, const Device& device, void* workspace, CUstream_st* stream);
void decode(const Problem& problem, const Device& device, void* workspace, CUstream_st* stream);

}  // namespace pagoda::tuned::many
