// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/ptx.cuh"
#include "backends/cuda/tuned/common/fp16_of_bytes.cuh"
#include "backends/cuda/tuned/wgmma/grouped/list_copies.cuh"
#include "backends/cuda/tuned/wgmma/tiles.cuh"

/// The warps that make tiles of fp16 of 8-bit keys and values.
namespace pagoda::tuned::wgmma::grouped {

using namespace ptx;

/// Two words as eight numbers of fp16.
template <Type T>
PAGODA_DEVICE uint4 fp16_of_words(std::uint32_t low, std::uint32_t high) {
  return make_uint4(fp16_of_bytes<T, 0>(low), fp16_of_bytes<T, 1>(low), fp16_of_bytes<T, 0>(high),
                    fp16_of_bytes<T, 1>(high));
}

/// Converts a tile, which lies as a tensor map with rows of 128 bytes writes it, by the converting warps. A thread has
/// 16 bytes of a token in each eight, and loads them all before it stores any. Eight lanes have the same dims of eight
/// tokens, so neither loads nor stores meet in a bank.
template <Type T, int D>
PAGODA_DEVICE void convert_tile(std::uint32_t from, std::uint32_t to, int thread) {
  static_assert(D == 128 && converting_warps * 32 == 8 * 8);
  constexpr int from_8 = byte_tile_bytes(D) / (tile_tokens / 8), to_8 = bytes_of_8_tokens(D);
  constexpr int eights = tile_tokens / 8;
  const int row = thread & 7, chunk = thread >> 3;
  from += row * 128 + ((chunk ^ row) << 4);
  to += swizzled_offset<D>(row, 2 * chunk);
  uint4 x[eights];
#pragma unroll
  for (int i = 0; i < eights; ++i) x[i] = load_shared_bits(from + i * from_8);
#pragma unroll
  for (int i = 0; i < eights; ++i) {
    const std::uint32_t at = to + i * to_8;
    store_shared(at, fp16_of_words<T>(x[i].x, x[i].y));
    store_shared(at ^ 16, fp16_of_words<T>(x[i].z, x[i].w));
  }
}

/// Converts all tiles of a block in the order of their use. thread: among those of the converting warps.
template <Type T, int D, int Warpgroups>
PAGODA_DEVICE void convert_list_tiles(ListMemory<T, D, Warpgroups> shared, int thread) {
  using Memory = ListMemory<T, D, Warpgroups>;
  Ring<Memory::byte_slots> from;
  Ring<Memory::slots> to;
#pragma unroll 1
  for (int tile = 0;; ++tile) {
    barrier_wait(shared.byte_full(from.slot), from.parity);
    if (tile == *shared.end()) return;
    barrier_wait(shared.empty(to.slot), to.parity ^ 1);  // in the first round all are empty
    convert_tile<T, D>(shared.byte_tile(from.slot), shared.tile(to.slot), thread);
    fence_async_proxy();  // products read the tile
    __syncwarp();
    if (thread % 32 == 0) barrier_arrive(shared.full(to.slot)), barrier_arrive(shared.byte_empty(from.slot));
    from.next(), to.next();
  }
}

}  // namespace pagoda::tuned::wgmma::grouped
