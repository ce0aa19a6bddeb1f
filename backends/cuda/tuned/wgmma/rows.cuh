// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/ptx.cuh"
#include "backends/cuda/tuned/wgmma/args.hpp"
#include "backends/cuda/tuned/wgmma/tuning.hpp"

/// The query rows that share a kv head, and which of them are a block's.
namespace pagoda::tuned::wgmma {

using namespace ptx;

/// First query row of the block. BlocksPerHead: blocks that share the query rows of a kv head.
template <int BlocksPerHead>
PAGODA_DEVICE int first_row() {
  return BlocksPerHead == 1 ? 0 : static_cast<int>(blockIdx.x % BlocksPerHead) * tile_rows;
}
/// Number of query rows of the block.
template <int BlocksPerHead>
PAGODA_DEVICE int block_rows(const Args& args) {
  return BlocksPerHead == 1 ? args.num_rows : max(min(tile_rows, args.num_rows - first_row<BlocksPerHead>()), 0);
}

struct QueryRow {
  int token, head;
  /// r: among those that share the kv head.
  PAGODA_DEVICE QueryRow(const Args& args, int kv_head, int r)
      : token(args.heads.divide(r)), head(kv_head * args.heads.value + r - token * args.heads.value) {}
  /// Newest tokens that it does not see.
  PAGODA_DEVICE int hidden(const Args& args) const { return max(args.hidden - token, 0); }
  /// Index of its first element in q or out.
  PAGODA_DEVICE std::int64_t offset(const Heads& h, std::int64_t token_stride, int batch) const {
    return batch * h.batch + token * token_stride + head * h.head;
  }
};

/// Waits until `Threads` threads of the block have arrived. All of them must execute the same bar.sync instruction.
template <int Threads>
PAGODA_DEVICE void sync_block() {
  asm volatile("bar.sync 1, %0;" ::"n"(Threads) : "memory");
}
/// The same where warps arrive from different places in the code.
template <int Threads>
PAGODA_DEVICE void sync_block_from_anywhere() {
  asm volatile("barrier.sync 1, %0;" ::"n"(Threads) : "memory");
}

}  // namespace pagoda::tuned::wgmma
