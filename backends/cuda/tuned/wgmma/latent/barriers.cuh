// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/wgmma/latent/tuning.hpp"
#include "backends/cuda/tuned/wgmma/rows.cuh"

/// Barriers through which the warps of a block pass data to each other.
namespace pagoda::tuned::wgmma::latent {

/// A block's shared memory and the barriers in it. A warp that waits for a barrier must wait for each of its phases. If
/// it skipped one, it could not tell whether that phase has completed.
struct SharedMemory {
  std::uint32_t address;
  /// All threads must call this before they use a barrier. in_cluster: also cluster_wait before they use one of another
  /// block.
  PAGODA_DEVICE void begin(bool in_cluster) const {
    if (in_cluster) cluster_arrive();
    sync_block_from_anywhere<threads>();
  }
  PAGODA_DEVICE std::uint32_t barrier(int i) const { return address + SharedLayout::barriers + 8 * i; }
  PAGODA_DEVICE void wait(int i, int phase) const { barrier_wait(barrier(i), phase & 1); }
  /// Waits until a quarter of a slot may be filled, for the round-th tile of the slot.
  PAGODA_DEVICE void wait_for_quarter(int slot, int quarter, int round) const {
    if (round > 0) wait(Barriers::empty + slot * Barriers::quarters + quarter, round - 1);
  }
  /// One arrival for each warp, after all of its lanes have arrived here.
  PAGODA_DEVICE void arrive(int i, int lane) const {
    __syncwarp();
    if (lane == 0) barrier_arrive(barrier(i));
  }
};

/// Flags stored with a tile's probabilities, for the rows of a warp.
enum TileFlags { max_raised = 1, first_of_segment = 2, last_of_segment = 4, no_more_tiles = 8, last_of_pair = 16 };

}  // namespace pagoda::tuned::wgmma::latent
