// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/wgmma/latent/barriers.cuh"
#include "backends/cuda/wgmma.cuh"

/// Two blocks of a cluster, which have neighboring splits of a batch head, join them through shared memory. Of every
/// 256 dims, the block of rank 0 joins the first 128 and the other block the last 128. Each warp exchanges results with
/// the warp of the same index.
namespace pagoda::tuned::wgmma::latent {

/// Tells the other block that this warp has seen the probabilities of the block's last tile. The block has no more use
/// for its queries then, and the other block may store to their place.
PAGODA_DEVICE void allow_pair_to_send(SharedMemory shared, int lane) {
  if (lane == 0) barrier_arrive_in_cluster(cluster_address(shared.barrier(Barriers::pair_ready), cluster_rank() ^ 1));
}

/// Adds the other block's split to o[0], which gets the dims that this block joins, and to state. o[1] is lost. warp:
/// among those that add values.
PAGODA_DEVICE void join_pair(float (&o)[2][64], float2 (&state)[2], SharedMemory shared, int warp, int lane) {
  const int rank            = cluster_rank();
  const std::uint32_t mine  = shared.address + SharedLayout::received + warp * exchanged_bytes + opaque(lane) * 16,
                      full  = shared.barrier(Barriers::received + warp);
  const std::uint32_t other = cluster_address(mine, rank ^ 1), other_full = cluster_address(full, rank ^ 1);
  if (lane == 0) barrier_expect_bytes(full, exchanged_bytes);
  barrier_wait_in_cluster(shared.barrier(Barriers::pair_ready), 0);
  store_async4(other, make_float4(state[0].x, state[0].y, state[1].x, state[1].y), other_full);
#pragma unroll
  for (int j = 0; j < 16; ++j) {
    const auto sent = [&](int e) { return rank == 0 ? o[1][4 * j + e] : o[0][4 * j + e]; };
    store_async4(other + (j + 1) * 512, make_float4(sent(0), sent(1), sent(2), sent(3)), other_full);
  }
#pragma unroll
  for (int e = 0; e < 64; ++e) o[0][e] = rank == 0 ? o[0][e] : o[1][e];
  wgmma_fence_registers(o[0]);
  barrier_wait_in_cluster(full, 0);

  const float4 added = load_shared(mine);
  const float max0 = fmaxf(state[0].x, added.x), max1 = fmaxf(state[1].x, added.z);
  const float old0 = exp2_fast(state[0].x - max0), old1 = exp2_fast(state[1].x - max1);
  const float new0 = exp2_fast(added.x - max0), new1 = exp2_fast(added.z - max1);
  state[0] = make_float2(max0, state[0].y * old0 + added.y * new0);
  state[1] = make_float2(max1, state[1].y * old1 + added.w * new1);
#pragma unroll
  for (int j = 0; j < 16; ++j) {
    const float4 x = load_shared(mine + (j + 1) * 512);
    float* const z = o[0] + 4 * j;
    z[0] = z[0] * old0 + x.x * new0, z[1] = z[1] * old0 + x.y * new0;
    z[2] = z[2] * old1 + x.z * new1, z[3] = z[3] * old1 + x.w * new1;
  }
}

}  // namespace pagoda::tuned::wgmma::latent
