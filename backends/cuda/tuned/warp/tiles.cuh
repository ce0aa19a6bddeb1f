// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/ptx.cuh"
#include "backends/cuda/tuned/common/args.hpp"

/// Tiles of 16 tokens: how they lie in shared memory, and the two ways they get there.
namespace pagoda::tuned {

using namespace ptx;

/// A tile of keys or values in shared memory: runs of 128 bytes of each row, run after run, 16-byte chunk i of row r at
/// place i ^ (r % 8) of its run (what a tensor map's 128-byte swizzle makes, and what keeps eight rows' chunks in
/// different banks).
template <Type T, int D>
struct Tile {
  static constexpr int tokens        = 16;
  static constexpr int element_bytes = bytes_of(T);
  static constexpr int row_bytes     = D * element_bytes;
  static constexpr int bytes         = tokens * row_bytes;
  static_assert(row_bytes % 128 == 0);
  static PAGODA_DEVICE std::uint32_t place(int row, int chunk) {
    return (chunk >> 3) * (128 * tokens) + row * 128 + (((chunk & 7) ^ (row & 7)) << 4);
  }
};

/// Clears the rows of a tile of values from `count` on: memory behind the last token may hold anything, and 0 times
/// that is not 0. Copies: is told.
template <class TileShape, class Copies>
PAGODA_DEVICE void clear_rows(std::uint32_t tile, int count, int lane) {
  constexpr int chunks = TileShape::row_bytes / 16;
  for (int i = lane; i < (TileShape::tokens - count) * chunks; i += 32)
    clear_shared(tile + TileShape::place(count + i / chunks, i % chunks));
  Copies::written();
  __syncwarp();
}

/// Where a tile lies in the cache.
struct Source {
  int page, token;  ///< token: of the tile's first, in the page
};

/// A position in a ring of stages.
template <int Stages>
struct Ring {
  int slot = 0, parity = 0;  ///< parity: of the rounds so far
  PAGODA_DEVICE void next() {
    if (++slot == Stages) slot = 0, parity ^= 1;
  }
  PAGODA_DEVICE bool operator==(const Ring& o) const { return slot == o.slot && parity == o.parity; }
};

/// By tensor maps (sm_90): one lane asks for a whole tile, a barrier in shared memory counts its bytes.
template <class TileShape, int Stages>
class TensorCopies {
 public:
  static constexpr bool uses_maps = true;

  PAGODA_DEVICE TensorCopies(const Args& args, std::uint32_t ring, std::uint32_t barriers, int lane)
      : args_(args), ring_(ring), barriers_(barriers), policy_(read_once_policy()) {
    if (lane < Stages) barrier_init(barriers_ + 8 * lane);
    barrier_init_done();
    __syncwarp();
  }
  /// The maps themselves are on their way while sources are worked out.
  PAGODA_DEVICE static void prefetch(const Args& args) {
    if (threadIdx.x == 0) {
      prefetch_map(&args.k_map);
      prefetch_map(&args.v_map);
    }
  }
  /// The lane that knows the source says mine.
  PAGODA_DEVICE void begin(int slot, bool mine, int, Source source, int head) {
    if (mine) {
      const std::uint32_t to = ring_ + slot * 2 * TileShape::bytes, barrier = barriers_ + 8 * slot;
      barrier_expect(barrier, 2 * TileShape::bytes);
      copy_box(to, &args_.k_map, source.token, head, source.page, barrier, policy_);
      copy_box(to + TileShape::bytes, &args_.v_map, source.token, head, source.page, barrier, policy_);
    }
  }
  PAGODA_DEVICE void begin_none() {}
  PAGODA_DEVICE void wait(const Ring<Stages>& at) const { barrier_wait(barriers_ + 8 * at.slot, at.parity); }
  /// Waits for all that has begun.
  PAGODA_DEVICE void drain(Ring<Stages>& used, const Ring<Stages>& issued) const {
    for (; !(used == issued); used.next()) wait(used);
  }
  /// Threads have written into a stage.
  PAGODA_DEVICE static void written() { fence_copies(); }

 private:
  const Args& args_;
  std::uint32_t ring_, barriers_;
  std::uint64_t policy_;
};

/// By asynchronous copies of 16 bytes a lane (sm_80 and newer).
template <class TileShape, int Stages>
class LaneCopies {
 public:
  static constexpr bool uses_maps = false;

  PAGODA_DEVICE LaneCopies(const Args& args, std::uint32_t ring, std::uint32_t, int lane)
      : args_(args), ring_(ring), lane_(lane), policy_(read_once_policy()) {}

  PAGODA_DEVICE static void prefetch(const Args&) {}
  PAGODA_DEVICE void begin(int slot, bool, int owner, Source source, int head) {
    const int page = __shfl_sync(~0u, source.page, owner), token = __shfl_sync(~0u, source.token, owner);
    const std::uint32_t to = ring_ + slot * 2 * TileShape::bytes;
    copy(to, args_.k, page, token, head);
    copy(to + TileShape::bytes, args_.v, page, token, head);
    commit_copies();
  }
  PAGODA_DEVICE void begin_none() { commit_copies(); }
  PAGODA_DEVICE void wait(const Ring<Stages>&) const {
    wait_copies<Stages - 1>();
    __syncwarp();
  }
  PAGODA_DEVICE void drain(Ring<Stages>& used, const Ring<Stages>& issued) const {
    wait_copies<0>();
    used = issued;
  }
  PAGODA_DEVICE static void written() {}

 private:
  PAGODA_DEVICE void copy(std::uint32_t to, const Cache& from, int page, int token, int head) const {
    constexpr int chunks = TileShape::row_bytes / 16, rows = 32 / chunks;
    const int row0 = lane_ / chunks, chunk = lane_ % chunks;
    const char* const base = static_cast<const char*>(from.data) + page * from.page + head * from.head + 16 * chunk;
#pragma unroll 8
    for (int i = 0; i < TileShape::tokens; i += rows) {
      const int row = row0 + i;  // a page may end within a tile: nothing behind it is read
      copy_async(to + TileShape::place(row, chunk), base + min(token + row, args_.page_size - 1) * from.token, policy_);
    }
  }

  const Args& args_;
  std::uint32_t ring_;
  int lane_;
  std::uint64_t policy_;
};

}  // namespace pagoda::tuned
