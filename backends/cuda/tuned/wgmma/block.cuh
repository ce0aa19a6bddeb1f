// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/common/segments.cuh"
#include "backends/cuda/tuned/warp/tiles.cuh"
#include "backends/cuda/tuned/wgmma/args.hpp"
#include "backends/cuda/tuned/wgmma/shapes.hpp"

/// Which query rows and which tiles are a block's.
namespace pagoda::tuned::wgmma {

using namespace ptx;

/// The segments of a block, for one warp.
template <int Together>
class Course {
 public:
  using Steps = Walk<1, tokens, Together>;
  typename Steps::Segment s;
  bool any = false;  ///< s is a segment
  int last = 0;      ///< block that has the row's last part

  /// The first segment as it is if the batch is even; its length, and all lengths, are on their way.
  PAGODA_DEVICE Course(const Args& args, int lane)
      : lengths_(args, lane), walk_(Steps::dealt(args, 0)), streams_(args.streams) {
    if (!streams_) any = walk_.next(args, s);
  }
  /// True: the first segment is another one.
  PAGODA_DEVICE bool settle(const Args& args, int lane) {
    bool changed = false;
    if (streams_ || !(args.alone || lengths_.template count<tokens>(args, lane).even)) [[unlikely]] {
      streams_ = changed = true;
      walk_              = Steps::streamed(args, 0, lane, lengths_.template count<tokens>(args, lane).tiles);
      any                = walk_.next(args, s);
    }
    judge();
    return changed;
  }
  PAGODA_DEVICE void next(const Args& args) {
    any = walk_.next(args, s);
    judge();
  }
  PAGODA_DEVICE int tiles() const { return s.first < s.end() ? (s.end() - s.first - 1) / s.step + 1 : 0; }

 private:
  /// A row that is dealt has no more parts than tiles, and one if it has none.
  PAGODA_DEVICE void judge() {
    if (!any) return;
    last = streams_ ? s.to : min(s.to, s.from + max(s.end(), 1) - 1);
    any  = Steps::block() <= last;
  }
  Lengths lengths_;
  Steps walk_;
  bool streams_;
};

/// Where the pages of a sequence are, eight tokens at a time. Beyond a row's end its last entry again, so that nothing
/// behind the table is read.
class Pages {
 public:
  using Segment = SegmentOf<tokens>;

  PAGODA_DEVICE void begin(const Args& args, const Segment& s) {
    row_ = args.has_indptr ? __ldg(args.page_indptr + s.sequence) : s.sequence * args.table_row;
  }
  PAGODA_DEVICE Source look_up(const Args& args, const Segment& s, int eight) const {
    if (!args.block_table) return {s.sequence, eight * 8};
    const int index = args.tiles_per_page.divide(eight);
    const int last  = args.has_indptr ? args.last_page - row_ : args.last_page;
    return {__ldg(args.block_table + (row_ + min(index, last) * args.table_page)),
            (eight - index * args.tiles_per_page.value) * 8};
  }

 private:
  int row_ = 0;  ///< where the sequence's pages begin in the table
};

/// Query rows of this block among those that share a kv head.
template <int Together>
PAGODA_DEVICE int first_row() {
  return Together == 1 ? 0 : static_cast<int>(blockIdx.x % Together) * rows;
}
template <int Together>
PAGODA_DEVICE int rows_here(const Args& args) {
  return Together == 1 ? args.rows : max(min(rows, args.rows - first_row<Together>()), 0);
}

/// A query row.
struct QueryRow {
  int token, head;
  /// r: among the kv head's
  PAGODA_DEVICE QueryRow(const Args& args, int kv_head, int r)
      : token(args.heads.divide(r)), head(kv_head * args.heads.value + r - token * args.heads.value) {}
  /// Newest tokens that it does not see.
  PAGODA_DEVICE int hidden(const Args& args) const { return max(args.hidden - token, 0); }
  PAGODA_DEVICE std::int64_t in(const Heads& h, std::int64_t next_token, int batch) const {
    return batch * h.batch + token * next_token + head * h.head;
  }
};

/// Where 16 bytes of a row of queries, keys or values lie, in what the tensor maps' swizzle makes of rows of D dims.
template <int D>
PAGODA_DEVICE std::uint32_t place_of(int row, int chunk) {
  return row / 8 * (D / 64 * run_bytes) + chunk / 8 * run_bytes + row % 8 * 128 + (((chunk & 7) ^ (row & 7)) << 4);
}

/// Clears the values of a tile from token `count` on: memory behind the last token may hold anything, and 0 times that
/// is not 0. By so many threads. D: dims of a row in shared memory; DimsV: the first of them, which are values.
template <int D, int DimsV, int Threads>
PAGODA_DEVICE void clear_values(std::uint32_t tile, int count, int thread) {
  constexpr int chunks = DimsV / 8;
  for (int c = thread; c < (tokens - count) * chunks; c += Threads)
    clear_shared(tile + place_of<D>(count + c / chunks, c % chunks));
}

/// Zeroes the infinities and NaNs among the values of tokens first .. last of a tile, by so many threads. Returns
/// whether this thread found any. D, DimsV: as in clear_values.
template <bool Bf16, int D, int DimsV, int Threads>
PAGODA_DEVICE bool clear_non_finite(std::uint32_t tile, int first, int last, int thread) {
  constexpr int chunks             = DimsV / 8;
  constexpr std::uint32_t exponent = Bf16 ? 0x7f807f80u : 0x7c007c00u, lowest_bit = Bf16 ? 0x00800080u : 0x04000400u;
  bool found = false;
  for (int c = thread; c < (last - first) * chunks; c += Threads) {
    const std::uint32_t at = tile + place_of<D>(first + c / chunks, c % chunks);
    uint4 x                = load_shared_bits(at);
    // The addition carries into the sign bit where all bits of the exponent are set.
    const auto signs = [](std::uint32_t two) { return ((two & exponent) + lowest_bit) & 0x80008000u; };
    if ((signs(x.x) | signs(x.y) | signs(x.z) | signs(x.w)) == 0) continue;
    const auto finite = [&](std::uint32_t two) { return two & ~((signs(two) >> 15) * 0xffffu); };
    store_shared(at, make_uint4(finite(x.x), finite(x.y), finite(x.z), finite(x.w)));
    found = true;
  }
  return found;
}

/// Waits until so many threads of the block are here. All of them execute the same instruction, which bar.sync demands.
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
