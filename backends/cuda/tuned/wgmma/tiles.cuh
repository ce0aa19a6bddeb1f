// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/common/page_cursor.cuh"
#include "backends/cuda/tuned/wgmma/rows.cuh"

/// Tiles of keys and values in shared memory, as tensor maps write them.
namespace pagoda::tuned::wgmma {

/// Offset of chunk `chunk` (16 bytes) of a row of queries, keys or values: the 128-byte swizzle of tensor maps, for
/// rows of D dims.
template <int D>
PAGODA_DEVICE std::uint32_t swizzled_offset(int row, int chunk) {
  return row / 8 * (D / 64 * run_bytes) + chunk / 8 * run_bytes + row % 8 * 128 + (((chunk & 7) ^ (row & 7)) << 4);
}

/// Zeroes the values of tokens `first` to `last` - 1 of a tile. See clear_values.
template <int D, int DimsV, int Threads>
PAGODA_DEVICE void clear_tokens(std::uint32_t tile, int first, int last, int thread) {
  constexpr int chunks = DimsV / 8;
  for (int c = thread; c < (last - first) * chunks; c += Threads)
    clear_shared(tile + swizzled_offset<D>(first + c / chunks, c % chunks));
}
/// Zeroes the values of a tile from token `count` on, by `Threads` threads. Memory behind the last token may hold
/// anything, and 0 times a NaN or an infinity is not 0. D: dims of a row in shared memory; DimsV: the first of them,
/// which are values.
template <int D, int DimsV, int Threads>
PAGODA_DEVICE void clear_values(std::uint32_t tile, int count, int thread) {
  clear_tokens<D, DimsV, Threads>(tile, count, tile_tokens, thread);
}

/// Zeroes the infinities and NaNs among the eight values at a place in shared memory. Returns whether there was any.
template <bool Bf16>
PAGODA_DEVICE bool clear_non_finite_chunk(std::uint32_t at) {
  constexpr std::uint32_t exponent = Bf16 ? 0x7f807f80u : 0x7c007c00u, lowest_bit = Bf16 ? 0x00800080u : 0x04000400u;
  uint4 x = load_shared_bits(at);
  // The addition carries into the sign bit where all bits of the exponent are set.
  const auto signs = [](std::uint32_t two) { return ((two & exponent) + lowest_bit) & 0x80008000u; };
  if ((signs(x.x) | signs(x.y) | signs(x.z) | signs(x.w)) == 0) return false;
  const auto finite = [&](std::uint32_t two) { return two & ~((signs(two) >> 15) * 0xffffu); };
  store_shared(at, make_uint4(finite(x.x), finite(x.y), finite(x.z), finite(x.w)));
  return true;
}

/// The same for the values of tokens `first` to `last` - 1 of a tile, by `Threads` threads. Returns whether this thread
/// found any. D, DimsV: as in clear_values.
template <bool Bf16, int D, int DimsV, int Threads>
PAGODA_DEVICE bool clear_non_finite(std::uint32_t tile, int first, int last, int thread) {
  constexpr int chunks = DimsV / 8;
  bool found           = false;
  for (int c = thread; c < (last - first) * chunks; c += Threads)
    if (clear_non_finite_chunk<Bf16>(tile + swizzled_offset<D>(first + c / chunks, c % chunks))) found = true;
  return found;
}

}  // namespace pagoda::tuned::wgmma
