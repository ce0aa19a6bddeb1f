// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/wgmma/join.cuh"
#include "backends/cuda/tuned/wgmma/latent/barriers.cuh"
#include "backends/cuda/wgmma.cuh"

/// Two blocks of a cluster, which have neighboring splits of a batch head, join them through shared memory. Of every 256
/// dims, the block of rank 0 joins the first 128 and the other block the last 128. Warps that add values pass on what
/// they have, and the warps that computed scores, which have nothing else to do by then, join it.
namespace pagoda::tuned::wgmma::latent {

/// Tells the other block that this warp has seen the probabilities of the block's last tile. The block has no more use
/// for its queries then, and the other block may store to their place.
PAGODA_DEVICE void allow_pair_to_send(SharedMemory shared, int lane) {
  if (lane == 0) barrier_arrive_in_cluster(cluster_address(shared.barrier(Barriers::pair_ready), cluster_rank() ^ 1));
}

/// Where the block keeps its half: in the slot that the last tile is not in. All warps have used it before
/// the probabilities of the last tile were stored.
PAGODA_DEVICE std::uint32_t kept_half(SharedMemory shared, int last_tile) {
  return shared.address + SharedLayout::tiles + (last_tile + 1) % stages * tile_bytes;
}

/// Passes on a warp's accumulators: half to the other block, half to the warps of this block that join. warp: among
/// those that add values. kept: where the block keeps its half.
PAGODA_DEVICE void pass_on(const float (&o)[2][64], const float2 (&state)[2], SharedMemory shared, std::uint32_t kept,
                           int warp, int lane) {
  const int rank            = cluster_rank();
  const std::uint32_t here  = warp * exchanged_bytes + opaque(lane) * 16;
  const std::uint32_t other = cluster_address(shared.address + SharedLayout::received + here, rank ^ 1),
                      full  = cluster_address(shared.barrier(Barriers::received + warp), rank ^ 1);
  const float4 states       = make_float4(state[0].x, state[0].y, state[1].x, state[1].y);
  barrier_wait_in_cluster(shared.barrier(Barriers::pair_ready), 0);
  const auto pass = [&](const float (&sent)[64], const float (&mine)[64]) {
    store_async4(other, states, full);
#pragma unroll
    for (int j = 0; j < 16; ++j)
      store_async4(other + (j + 1) * 512, make_float4(sent[4 * j], sent[4 * j + 1], sent[4 * j + 2], sent[4 * j + 3]),
                   full);
    store_shared(kept + here, states);
#pragma unroll
    for (int j = 0; j < 16; ++j)
      store_shared(kept + here + (j + 1) * 512,
                   make_float4(mine[4 * j], mine[4 * j + 1], mine[4 * j + 2], mine[4 * j + 3]));
  };
  if (rank == 0) {
    pass(o[1], o[0]);
  } else {
    pass(o[0], o[1]);
  }
}

/// A lane's part of a 16 x 16 block of what pass_on stored at `at`. index: of the block in the warp's 128 dims.
PAGODA_DEVICE Block16 load_exchanged(std::uint32_t at, int index, int lane) {
  at += lane * 16;
  Block16 x;
  x.state = load_shared(at);
  x.a = load_shared(at + (2 * index + 1) * 512), x.b = load_shared(at + (2 * index + 2) * 512);
  return x;
}

/// Joins the splits of both blocks, by the eight warps that computed scores. The result is stored: as outputs if the
/// batch head has no other splits, else as a partial result. warp: among the eight.
template <int BlocksPerHead>
PAGODA_DEVICE void join_pair(const auto& args, const FinishedSegment& segment, SharedMemory shared, std::uint32_t kept,
                             int warp, int lane) {
  const EntryView entry = entry_of(args, segment.batch);
  const int all_rows    = block_rows<BlocksPerHead>(args.rows_bound), sixteens = (all_rows + 15) / 16;
  if (lane == 0 && warp % 4 < sixteens) barrier_expect_bytes(shared.barrier(Barriers::received + warp), exchanged_bytes);
  float4* const partial =
      partials_of<BlocksPerHead>(args, SegmentCursor<BlocksPerHead>::Walk::block(), segment.has_first_tile);
  // The first pass changes nothing. It brings the code to the instruction cache while the last values are added.
#pragma unroll 1
  for (int i = -1; i < 2 * sixteens; ++i) {
    const bool warms = i < 0;
    const int from   = warms ? 0 : i % 2 * 4 + i / 2;  // the warp whose accumulators these are
    const int rows   = warms ? 0 : block_rows<BlocksPerHead>(num_rows(args, entry));
    if (i == 0) shared.wait(Barriers::kept, 0);
    if (i >= 0) barrier_wait_in_cluster(shared.barrier(Barriers::received + from), 0);
    Block16 x = load_exchanged(kept + from * exchanged_bytes, warp, lane);
    x.add(load_exchanged(shared.address + SharedLayout::received + from * exchanged_bytes, warp, lane));
    const int index = from % 4 * block16s_per_16_rows(head_dim_v) + from / 4 * 16 + cluster_rank() * 8 + warp;
    if (segment.whole) {
      store_block16<BlocksPerHead, head_dim_v>(args, entry.query_begin, segment.head, x, index, rows, lane);
    } else if (index / block16s_per_16_rows(head_dim_v) * 16 < rows) {
      x.store(partial + index * block16_quads, lane);
    }
  }
}

}  // namespace pagoda::tuned::wgmma::latent
