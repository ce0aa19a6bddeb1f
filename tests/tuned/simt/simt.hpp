// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ucontext.h>
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <csetjmp>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <vector>

/// Runs device code of the hand-tuned kernels on a host, for tests without a GPU. The threads of a block are fibers of
/// one host thread: each runs until it waits for others of its warp or its block. Only what the tested code needs is
/// here; the shadow of backends/cuda/ptx.cuh beside this header includes it.
namespace pagoda::simt {

class Block;
inline Block* running = nullptr;  ///< the block that runs

/// Where a number of threads wait for each other.
class Meeting {
 public:
  explicit Meeting(int members) : members_(members) {}
  void wait();
  unsigned round() const { return round_; }

 private:
  int members_, arrived_ = 0;
  unsigned round_ = 0;
};

/// What the lanes of a warp exchange. Values of two exchanges are kept, since a lane may be one ahead.
struct Warp {
  Meeting meeting{32};
  std::array<std::array<int, 32>, 2> values{};

  /// Returns the values of all lanes.
  const std::array<int, 32>& exchange(int lane, int x) {
    auto& of_round = values[meeting.round() & 1];
    of_round[lane] = x;
    meeting.wait();
    return of_round;
  }
};

struct Index {
  unsigned x = 0;
};

}  // namespace pagoda::simt

inline pagoda::simt::Index threadIdx, blockIdx, gridDim;  // NOLINT: CUDA's names

namespace pagoda::simt {

/// A block of threads.
class Block {
 public:
  Block(int index, int blocks, int threads) : index_(index), blocks_(blocks), fibers_(threads), meeting_(threads) {
    warps_.resize(static_cast<std::size_t>(threads / 32));
  }
  Block(const Block&)            = delete;
  Block& operator=(const Block&) = delete;

  /// Runs `body` in every thread. Throws if threads wait for others that have ended.
  void run(const std::function<void()>& body) {
    body_      = &body;
    running    = this;
    blockIdx.x = static_cast<unsigned>(index_), gridDim.x = static_cast<unsigned>(blocks_);
    for (Fiber& f : fibers_) {
      getcontext(&f.context);
      f.stack                    = std::make_unique<char[]>(stack_bytes);
      f.context.uc_stack.ss_sp   = f.stack.get();
      f.context.uc_stack.ss_size = stack_bytes;
      f.state                    = State::made;
      makecontext(&f.context, &Block::start, 0);
    }
    for (std::size_t left = fibers_.size(); left > 0;) {
      progress_ = false;
      for (current_ = 0; current_ < fibers_.size(); ++current_) {
        if (fibers_[current_].state == State::ended) continue;
        threadIdx.x = static_cast<unsigned>(current_);
        resume(fibers_[current_]);
        if (fibers_[current_].state == State::ended) --left, progress_ = true;
      }
      if (!progress_) throw std::logic_error("threads of a block wait for others that do not come");
    }
    running = nullptr;
  }
  Warp& warp() { return warps_[current_ / 32]; }
  int lane() const { return static_cast<int>(current_ % 32); }
  Meeting& meeting() { return meeting_; }
  void made_progress() { progress_ = true; }
  /// Lets other threads run.
  void yield() {
    if (_setjmp(fibers_[current_].where) == 0) _longjmp(scheduler_, 1);
  }
  bool any = false;  ///< of __syncthreads_or

 private:
  static constexpr std::size_t stack_bytes = 64 * 1024;
  enum class State { made, begun, ended };
  /// A context starts on a stack of its own. From then on setjmp and longjmp, which make no system calls, switch.
  struct Fiber {
    ucontext_t context;
    std::jmp_buf where;
    std::unique_ptr<char[]> stack;
    State state = State::made;
  };
  [[gnu::noinline]] void resume(Fiber& f) {
    if (_setjmp(scheduler_) != 0) return;
    if (f.state != State::made) _longjmp(f.where, 1);
    f.state = State::begun;
    setcontext(&f.context);
  }
  static void start() {
    Block* const block = running;
    (*block->body_)();
    block->fibers_[block->current_].state = State::ended;
    _longjmp(block->scheduler_, 1);
  }

  int index_, blocks_;
  std::vector<Fiber> fibers_;
  std::vector<Warp> warps_;
  Meeting meeting_;
  std::jmp_buf scheduler_{};
  std::size_t current_               = 0;
  bool progress_                     = false;
  const std::function<void()>* body_ = nullptr;
};

inline void Meeting::wait() {
  const unsigned mine = round_;
  running->made_progress();
  if (++arrived_ == members_) {
    arrived_ = 0, ++round_;
    return;
  }
  while (round_ == mine) running->yield();
}

}  // namespace pagoda::simt

// CUDA's functions. All lanes of a warp take part.

inline void __syncwarp() { pagoda::simt::running->warp().meeting.wait(); }
inline void __syncthreads() { pagoda::simt::running->meeting().wait(); }
inline int __syncthreads_or(int x) {
  auto& block = *pagoda::simt::running;
  block.meeting().wait();
  block.any = false;
  block.meeting().wait();
  block.any |= x != 0;
  block.meeting().wait();
  return block.any;
}
inline int __shfl_sync(unsigned, int x, int lane) {
  auto& block = *pagoda::simt::running;
  return block.warp().exchange(block.lane(), x)[lane & 31];
}
inline int __shfl_up_sync(unsigned, int x, int by) {
  auto& block    = *pagoda::simt::running;
  const int lane = block.lane();
  return block.warp().exchange(lane, x)[lane >= by ? lane - by : lane];
}
inline unsigned __ballot_sync(unsigned, bool is) {
  auto& block       = *pagoda::simt::running;
  const auto values = block.warp().exchange(block.lane(), is);
  unsigned bits     = 0;
  for (int lane = 0; lane < 32; ++lane) bits |= unsigned(values[lane] != 0) << lane;
  return bits;
}
inline bool __any_sync(unsigned mask, bool is) { return __ballot_sync(mask, is) != 0; }
inline int __reduce_add_sync(unsigned, int x) {
  auto& block = *pagoda::simt::running;
  int sum     = 0;
  for (const int value : block.warp().exchange(block.lane(), x)) sum += value;
  return sum;
}
inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1; }
template <class T>
T __ldg(const T* p) {
  return *p;
}
inline int atomicAdd(int* p, int x) {
  const int before = *p;
  *p += x;
  return before;
}
inline float __log2f(float x) { return std::log2(x); }
using std::max;
using std::min;
