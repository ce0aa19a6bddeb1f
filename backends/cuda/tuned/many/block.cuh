// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/many/args.hpp"
#include "backends/cuda/tuned/many/shapes.hpp"
#include "backends/cuda/tuned/walk.cuh"

/// Which tiles are a block's, and how its warps hand things on.
namespace pagoda::tuned::many {

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

/// Until all of the block are here.
PAGODA_DEVICE void sync_block() { asm volatile("bar.sync 1, %0;" ::"n"(threads) : "memory"); }

/// Barriers are known by name (Shared), shared memory by its address. Whoever waits for a barrier waits for each of its
/// phases: of one that was left out it could not tell whether it is over.
struct Place {
  std::uint32_t memory;
  /// All threads, before they touch a barrier.
  PAGODA_DEVICE void begin() const { sync_block(); }
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
/// The row that just ended, or the block's part of it.
struct Ended {
  int batch, head, begins, whole;
};

/// Query rows of this block among those that share a kv head.
template <int Together>
PAGODA_DEVICE int first_row() {
  return Together == 1 ? 0 : static_cast<int>(blockIdx.x % Together) * rows;
}
template <int Together>
PAGODA_DEVICE int rows_here(const Args& args) {
  return min(rows, args.group - first_row<Together>());
}

}  // namespace pagoda::tuned::many
