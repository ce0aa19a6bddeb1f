// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/ptx.cuh"
#include "backends/cuda/tuned/common/args.hpp"
#include "backends/cuda/tuned/common/page_cursor.cuh"
#include "backends/cuda/tuned/common/ring.cuh"
#include "backends/cuda/tuned/warp/tuning.hpp"

/// Tiles of 16 tokens: their layout in shared memory, and the two ways to copy them there.
namespace pagoda::tuned::warp {

using namespace ptx;

/// A tile of keys or values in shared memory: runs of 128 bytes of each KV row, run after run. Chunk i (16 bytes) of
/// row r lies at place i ^ (r % 8) of its run. This is the 128-byte swizzle of tensor maps; it puts the chunks of eight
/// rows into different banks. Rows of 64 bytes have their 64-byte swizzle, which does the same.
template <Type T, int D>
struct Tile {
  static constexpr int tokens     = tile_tokens;
  static constexpr TileBytes size = tile_bytes(T, D);
  static constexpr int row_bytes  = tuned::row_bytes(T, D);
  static constexpr int bytes      = size.rows;
  static constexpr bool integers  = is_integer(T);
  static constexpr int min_arch   = is_quantized(T) ? 900 : 800;
  static_assert(row_bytes % 128 == 0 || row_bytes == 64);
  static PAGODA_DEVICE std::uint32_t offset(int row, int chunk) {
    if constexpr (row_bytes == 64) return row * 64 + ((chunk ^ (row >> 1 & 3)) << 4);
    return (chunk >> 3) * (128 * tokens) + row * 128 + (((chunk & 7) ^ (row & 7)) << 4);
  }
};

/// Copies by tensor maps (sm_90): one lane requests a whole tile, and a barrier in shared memory counts its bytes.
template <class TileShape, int Stages>
class TensorCopies {
 public:
  static constexpr bool uses_maps           = true;
  static constexpr bool small_pages         = false;  ///< whether a tile may lie in several pages
  static constexpr bool may_be_programmatic = true;
  static constexpr TileBytes size           = TileShape::size;

  PAGODA_DEVICE TensorCopies(const Args& args, std::uint32_t ring, std::uint32_t barriers, int lane)
      : args_(args), ring_(ring), barriers_(barriers), policy_(read_once_policy()) {
    if (lane < Stages) barrier_init(barriers_ + 8 * lane);
    fence_barrier_init();
    __syncwarp();
  }
  /// Prefetches the maps while the locations of tiles are computed.
  PAGODA_DEVICE static void prefetch(const Args& args) {
    if (threadIdx.x == 0) {
      prefetch_map(&args.k_map);
      prefetch_map(&args.v_map);
    }
  }
  /// Starts to copy a tile of keys and one of values. is_owner: this lane knows the location.
  PAGODA_DEVICE void begin(int slot, bool is_owner, int, TokenLocation from, int head) {
    if (is_owner) {
      const std::uint32_t to = ring_ + slot * 2 * TileShape::bytes, barrier = barriers_ + 8 * slot;
      barrier_expect_bytes(barrier, 2 * TileShape::bytes);
      copy_tensor_box(to, &args_.k_map, from.token, head, from.page, barrier, policy_);
      copy_tensor_box(to + TileShape::bytes, &args_.v_map, from.token, head, from.page, barrier, policy_);
    }
  }
  /// Whether nobody else reads the tiles that are copied from now on. At first, nobody does.
  PAGODA_DEVICE void read_once(bool once) { policy_ = once ? read_once_policy() : ordinary_policy(); }
  /// Takes the place of a tile if none is left.
  PAGODA_DEVICE void begin_none() {}
  PAGODA_DEVICE void wait(const Ring<Stages>& at) const { barrier_wait(barriers_ + 8 * at.slot, at.parity); }
  /// Waits for all copies that have begun.
  PAGODA_DEVICE void drain(Ring<Stages>& used, const Ring<Stages>& issued) const {
    for (; !(used == issued); used.next()) wait(used);
  }
  /// Orders the lanes' stores to a stage before the copies that overwrite it.
  PAGODA_DEVICE static void order_stores() { fence_async_proxy(); }

 private:
  const Args& args_;
  std::uint32_t ring_, barriers_;
  std::uint64_t policy_;
};

/// The common part of copies by asynchronous copies of the lanes: each tile is one committed group of them.
template <int Stages>
struct CommittedCopies {
  PAGODA_DEVICE void begin_none() { commit_copies(); }
  PAGODA_DEVICE void wait(const Ring<Stages>&) const {
    wait_copies<Stages - 1>();
    __syncwarp();
  }
  PAGODA_DEVICE void drain(Ring<Stages>& used, const Ring<Stages>& issued) const {
    wait_copies<0>();
    used = issued;
  }
};

/// Copies by asynchronous copies of 16 bytes a lane (sm_80 and newer). The same interface, except that a tile may lie
/// in several small pages.
template <class TileShape, int Stages>
class LaneCopies : public CommittedCopies<Stages> {
 public:
  static constexpr bool uses_maps           = false;
  static constexpr bool small_pages         = true;
  static constexpr bool may_be_programmatic = false;
  static constexpr TileBytes size           = TileShape::size;

  PAGODA_DEVICE LaneCopies(const Args& args, std::uint32_t ring, std::uint32_t, int lane)
      : args_(args), ring_(ring), lane_(lane), policy_(read_once_policy()) {}

  PAGODA_DEVICE static void prefetch(const Args&) {}
  /// owner: lane that knows the location of the tile's first copy; the lanes behind it know those of the others.
  /// visible: returns the tokens that the query token sees, as bits, at least one. The others may lie in pages that do
  /// not exist, which are not read if a tile has several copies.
  template <class Visible>
  PAGODA_DEVICE void begin(int slot, int owner, TokenLocation from, int head, const Visible& visible) {
    const std::uint32_t to = ring_ + slot * 2 * TileShape::bytes;
    if (args_.log_copies == 0) {
      const int page = __shfl_sync(~0u, from.page, owner), token = __shfl_sync(~0u, from.token, owner);
      copy(to, args_.k, page, token, head);
      copy(to + TileShape::bytes, args_.v, page, token, head);
    } else {
      copy_small_pages(to, owner, from, head, visible());
    }
    commit_copies();
  }
  PAGODA_DEVICE static void order_stores() {}

 private:
  PAGODA_DEVICE void copy(std::uint32_t to, const Cache& from, int page, int token, int head) const {
    constexpr int chunks = TileShape::row_bytes / 16, rows_at_once = 32 / chunks;
    const int row0 = lane_ / chunks, chunk = lane_ % chunks;
    const char* const base = static_cast<const char*>(from.data) + page * from.page + head * from.head + 16 * chunk;
#pragma unroll 8
    for (int i = 0; i < TileShape::tokens; i += rows_at_once) {
      const int row = row0 + i;  // a page may end within a tile: nothing behind it is read
      copy_async(to + TileShape::offset(row, chunk), base + min(token + row, args_.page_size - 1) * from.token,
                 policy_);
    }
  }

  /// Copies a tile of small pages, with the last visible token in place of each hidden one.
  PAGODA_DEVICE void copy_small_pages(std::uint32_t to, int owner, TokenLocation from, int head,
                                      unsigned visible) const {
    constexpr int chunks = TileShape::row_bytes / 16, rows_at_once = 32 / chunks;
    const int row0 = lane_ / chunks, chunk = lane_ % chunks, last = 31 - __clz(static_cast<int>(visible));
    const int log            = 4 - args_.log_copies;  // log2 of the tokens of a copy
    const char* const keys   = static_cast<const char*>(args_.k.data) + head * args_.k.head + 16 * chunk;
    const char* const values = static_cast<const char*>(args_.v.data) + head * args_.v.head + 16 * chunk;
#pragma unroll 8
    for (int i = 0; i < TileShape::tokens; i += rows_at_once) {
      const int row = row0 + i, token = visible >> row & 1 ? row : last, source = owner + (token >> log);
      const std::int64_t page   = __shfl_sync(~0u, from.page, source);
      const std::int64_t at     = __shfl_sync(~0u, from.token, source) + (token & ((1 << log) - 1));
      const std::uint32_t place = to + TileShape::offset(row, chunk);
      copy_async(place, keys + page * args_.k.page + at * args_.k.token, policy_);
      copy_async(place + TileShape::bytes, values + page * args_.v.page + at * args_.v.token, policy_);
    }
  }

  const Args& args_;
  std::uint32_t ring_;
  int lane_;
  std::uint64_t policy_;
};

}  // namespace pagoda::tuned::warp
