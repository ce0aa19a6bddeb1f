// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/detail/schedule.hpp>

#include <cstddef>

/// The layout of the memory that decodes write besides their outputs.
namespace pagoda::detail {

/// Every part begins on a multiple of this many bytes.
constexpr std::size_t workspace_alignment = 16;

/// Allocates consecutive aligned parts. The total is the size of the workspace.
struct Allocator {
  std::size_t used = 0;
  std::size_t take(std::size_t bytes) {
    const std::size_t at = used;
    used += (bytes + workspace_alignment - 1) / workspace_alignment * workspace_alignment;
    return at;
  }
};

constexpr int padded_to_quads(int dims) { return (dims + 3) / 4 * 4; }

/// Layout of the partial states of the generic kernel. Throws InvalidArgument if there are too many.
WorkspaceLayout workspace_layout(const ProblemShape& shape, const Bounds& bounds, const KernelChoice& kernel,
                                 int max_slots);

}  // namespace pagoda::detail
