// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/wgmma/block.cuh"
#include "backends/cuda/tuned/wgmma/latent/shapes.hpp"

/// How the warps of a block hand things on.
namespace pagoda::tuned::wgmma::latent {

/// Barriers are known by name (Shared), shared memory by its address. Whoever waits for a barrier waits for each of its
/// phases: of one that was left out it could not tell whether it is over.
struct Place {
  std::uint32_t memory;
  /// All threads, before they touch a barrier.
  PAGODA_DEVICE void begin() const { sync_block_from_anywhere<threads>(); }
  PAGODA_DEVICE std::uint32_t barrier(int i) const { return memory + Shared::barriers + 8 * i; }
  PAGODA_DEVICE void wait(int i, int phase) const { barrier_wait(barrier(i), phase & 1); }
  /// One arrival for each warp, once all of it is there.
  PAGODA_DEVICE void arrive(int i, int lane) const {
    __syncwarp();
    if (lane == 0) barrier_arrive(barrier(i));
  }
};

/// What a tile's probabilities come with, for the rows of a warp.
enum Sign { raised = 1, first_of_row = 2, last_of_row = 4, no_more = 8 };

}  // namespace pagoda::tuned::wgmma::latent
