// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>
#include <ucontext.h>
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <csetjmp>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

/// Runs device code of the hand-tuned kernels on a host, for tests without a GPU. The threads of a grid are fibers of
/// one host thread: each runs until it waits for others. Asynchronous copies end some time after they have started, and
/// products of warpgroups when they are waited for; blocks take turns at random. So a missing wait changes results. A
/// missing fence does not. There is only what the tested code needs. The header files beside this one take the places
/// of CUDA's and of backends/cuda/ptx.cuh and wgmma.cuh.
namespace pagoda::simt {

class Grid;
inline Grid* running = nullptr;

/// A barrier of a warp or of a block. A phase ends when all members have arrived.
class Barrier {
 public:
  void arrive(int members) {
    if (++arrived_ >= members) arrived_ = 0, ++phase_;
  }
  void wait(int members);
  std::uint32_t phase() const { return phase_; }

 private:
  int arrived_         = 0;
  std::uint32_t phase_ = 0;
};

/// What the lanes of a warp exchange. Words of two exchanges are kept, since a lane may be one ahead.
struct Warp {
  using Words = std::array<std::uint32_t, 32>;
  Barrier barrier;
  std::array<Words, 2> words{};
  /// Of a matrix product: the lanes' words of both operands, and the products of 16 rows.
  std::array<std::array<std::uint32_t, 4>, 32> a{}, b{};
  float products[16][128]{};

  void wait() { barrier.wait(32); }
  /// Returns the words of all lanes.
  const Words& exchange(int lane, std::uint32_t word) {
    Words& of_phase                          = words[barrier.phase() & 1];
    of_phase[static_cast<std::size_t>(lane)] = word;
    wait();
    return of_phase;
  }
};

struct Index {
  unsigned x = 0, y = 0, z = 0;
};

}  // namespace pagoda::simt

// Variables of CUDA.
inline pagoda::simt::Index threadIdx, blockIdx, gridDim;

namespace pagoda::simt {

/// A launch: `blocks` blocks of `threads` threads, whose shared memory is at `shared`.
class Grid {
 public:
  Grid(int blocks, int threads, char* shared = nullptr, std::size_t shared_bytes = 0)
      : threads_(static_cast<std::size_t>(threads)), blocks_(static_cast<std::size_t>(blocks)), shared_(shared) {
    for (Block& b : blocks_) {
      b.fibers = std::vector<Fiber>(threads_);
      b.warps.resize(threads_ / 32);
      b.shared.assign(shared_bytes, '\x7f');  // anything may be there
    }
  }
  Grid(const Grid&)            = delete;
  Grid& operator=(const Grid&) = delete;

  /// Runs `body` in every thread. Throws if all threads wait.
  void run(const std::function<void()>& body) {
    body_            = &body;
    running          = this;
    gridDim.x        = static_cast<unsigned>(blocks_.size());
    std::size_t idle = 0;  // turns since a thread made progress
    for (std::size_t left = blocks_.size(); left > 0;) {
      do block_ = random_() % blocks_.size();
      while (block().begun && block().left == 0);
      idle = run_block() ? 0 : idle + 1;
      if (idle > 100 * blocks_.size()) throw std::logic_error("all threads wait");
      if (block().left == 0) --left;
      if (error_) std::rethrow_exception(error_);
    }
    running = nullptr;
  }

  Warp& warp() { return block().warps[thread_ / 32]; }
  int lane() const { return static_cast<int>(thread_ % 32); }
  int threads() const { return static_cast<int>(threads_); }
  /// A barrier of the block. Number 0 is that of __syncthreads.
  Barrier& barrier(int number) { return block().barriers[static_cast<std::size_t>(number)]; }
  bool& any() { return block().any; }
  /// `bytes` bytes of the block's shared memory.
  char* shared(std::size_t at, std::size_t bytes) {
    if (at + bytes > block().shared.size()) throw std::out_of_range("shared memory");
    return shared_ + at;
  }
  /// Adds an asynchronous copy of the block. Copies end in the order in which they start.
  void add_copy(std::function<void()> copy) { block().copies.push_back(std::move(copy)); }
  void end_copies() {
    for (auto& copies = block().copies; !copies.empty(); copies.pop_front()) copies.front()();
  }
  /// Asynchronous products of the thread.
  std::vector<std::function<void()>>& products() { return block().fibers[thread_].products; }
  std::ptrdiff_t shared_offset(const void* p) const { return static_cast<const char*>(p) - shared_; }
  void made_progress() { progress_ = true; }
  /// Waits while the masked bits of a word are `bits`.
  void wait_while(const std::uint32_t* word, std::uint32_t mask, std::uint32_t bits) {
    if ((*word & mask) != bits) return;
    block().fibers[thread_].wait = {word, mask, bits};
    yield();
    block().fibers[thread_].wait = {};
  }
  /// Lets other threads run.
  void yield() {
    if (_setjmp(block().fibers[thread_].where) == 0) _longjmp(scheduler_, 1);
  }

 private:
  static constexpr std::size_t stack_bytes = 64 * 1024;
  static constexpr int most_rounds         = 128;  ///< of a block's threads, before other blocks run
  enum class State { made, begun, ended };
  /// What a thread waits for. Without a word it can run.
  struct Wait {
    const std::uint32_t* word;
    std::uint32_t mask, bits;
    bool over() const { return !word || (*word & mask) != bits; }
  };
  /// A context starts on a stack of its own. From then on setjmp and longjmp, which make no system calls, switch.
  struct Fiber {
    ucontext_t context;
    std::jmp_buf where;
    std::unique_ptr<char[]> stack;
    std::vector<std::function<void()>> products;
    State state = State::made;
    Wait wait{};
  };
  struct Block {
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    std::array<Barrier, 16> barriers;
    std::deque<std::function<void()>> copies;
    std::vector<char> shared;  ///< while other blocks run
    std::size_t left = 0;      ///< threads that have not ended
    bool begun = false, any = false;
  };
  Block& block() { return blocks_[block_]; }

  void begin() {
    for (Fiber& f : block().fibers) {
      f.stack = std::make_unique_for_overwrite<char[]>(stack_bytes);
      getcontext(&f.context);
      f.context.uc_stack.ss_sp   = f.stack.get();
      f.context.uc_stack.ss_size = stack_bytes;
      makecontext(&f.context, &Grid::start, 0);
    }
    block().begun = true, block().left = threads_;
  }
  /// Lets the threads of a block run for a while. Returns whether any made progress.
  bool run_block() {
    if (!block().begun) begin();
    blockIdx.x = static_cast<unsigned>(block_);
    if (shared_) std::ranges::copy(block().shared, shared_);
    bool any  = false;
    progress_ = true;
    for (auto rounds = 1 + random_() % most_rounds; rounds > 0 && progress_ && block().left > 0; --rounds) {
      progress_ = false;
      for (thread_ = 0; thread_ < threads_; ++thread_) {
        Fiber& f = block().fibers[thread_];
        if (f.state == State::ended || !f.wait.over()) continue;
        threadIdx.x = static_cast<unsigned>(thread_);
        resume(f);
        if (f.state == State::ended) --block().left, progress_ = true;
      }
      any |= progress_;
      // A copy takes a few rounds of the threads, or as long as they wait for it.
      for (auto& copies = block().copies; !copies.empty() && (!progress_ || random_() % 4 == 0); copies.pop_front())
        copies.front()(), any = progress_ = true;
    }
    if (shared_) std::copy_n(shared_, block().shared.size(), block().shared.begin());
    return any;
  }
  [[gnu::noinline]] void resume(Fiber& f) {
    if (_setjmp(scheduler_) != 0) return;
    if (f.state != State::made) _longjmp(f.where, 1);
    f.state = State::begun;
    setcontext(&f.context);
  }
  static void start() {
    Grid* const grid = running;
    try {
      (*grid->body_)();
    } catch (...) {
      grid->error_ = std::current_exception();
    }
    grid->block().fibers[grid->thread_].state = State::ended;
    _longjmp(grid->scheduler_, 1);
  }

  std::size_t threads_;
  std::vector<Block> blocks_;
  char* shared_;
  std::jmp_buf scheduler_{};
  std::size_t block_ = 0, thread_ = 0;
  bool progress_ = false;
  std::minstd_rand random_;  ///< always the same numbers
  const std::function<void()>* body_ = nullptr;
  std::exception_ptr error_;  ///< that a thread has thrown
};

inline void Barrier::wait(int members) {
  const std::uint32_t mine = phase_;
  running->made_progress();
  arrive(members);
  running->wait_while(&phase_, ~0u, mine);
}

}  // namespace pagoda::simt

// Functions of CUDA. All lanes of a warp take part.

inline void __syncwarp() { pagoda::simt::running->warp().wait(); }
inline void __syncthreads() { pagoda::simt::running->barrier(0).wait(pagoda::simt::running->threads()); }
inline int __syncthreads_or(int x) {
  auto& grid = *pagoda::simt::running;
  __syncthreads();
  grid.any() = false;
  __syncthreads();
  grid.any() |= x != 0;
  __syncthreads();
  return grid.any();
}
template <class T>
T __shfl_sync(unsigned mask, T x, int lane) {
  if constexpr (sizeof(T) == 8) {
    const auto word = std::bit_cast<std::array<std::uint32_t, 2>>(x);
    return std::bit_cast<T>(std::array{__shfl_sync(mask, word[0], lane), __shfl_sync(mask, word[1], lane)});
  } else {
    auto& grid        = *pagoda::simt::running;
    const auto& words = grid.warp().exchange(grid.lane(), std::bit_cast<std::uint32_t>(x));
    return std::bit_cast<T>(words[static_cast<std::size_t>(lane & 31)]);
  }
}
template <class T>
T __shfl_up_sync(unsigned mask, T x, int by) {
  const int lane = pagoda::simt::running->lane();
  return __shfl_sync(mask, x, lane >= by ? lane - by : lane);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T x, int bits) {
  return __shfl_sync(mask, x, pagoda::simt::running->lane() ^ bits);
}
inline unsigned __ballot_sync(unsigned, bool is) {
  auto& grid        = *pagoda::simt::running;
  const auto& words = grid.warp().exchange(grid.lane(), is);
  unsigned bits     = 0;
  for (unsigned lane = 0; lane < 32; ++lane) bits |= words[lane] << lane;
  return bits;
}
inline bool __any_sync(unsigned mask, bool is) { return __ballot_sync(mask, is) != 0; }
inline int __reduce_add_sync(unsigned, int x) {
  auto& grid = *pagoda::simt::running;
  int sum    = 0;
  for (const std::uint32_t word : grid.warp().exchange(grid.lane(), static_cast<std::uint32_t>(x)))
    sum += static_cast<int>(word);
  return sum;
}
inline int __reduce_max_sync(unsigned, int x) {
  auto& grid  = *pagoda::simt::running;
  int largest = x;
  for (const std::uint32_t word : grid.warp().exchange(grid.lane(), static_cast<std::uint32_t>(x)))
    largest = std::max(largest, static_cast<int>(word));
  return largest;
}
inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1; }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __popc(unsigned x) { return std::popcount(x); }
template <class T>
T __ldg(const T* p) {
  return *p;
}
inline int atomicAdd(int* p, int x) {
  const int before = *p;
  *p += x;
  return before;
}
inline int atomicExch(int* p, int x) { return std::exchange(*p, x); }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
/// Byte i of the result is the byte of x (0 to 3) or y (4 to 7) that nibble i of `which` names.
inline std::uint32_t __byte_perm(std::uint32_t x, std::uint32_t y, std::uint32_t which) {
  const std::uint64_t both = std::uint64_t(y) << 32 | x;
  std::uint32_t bytes      = 0;
  for (int i = 0; i < 4; ++i) bytes |= static_cast<std::uint32_t>(both >> 8 * (which >> 4 * i & 7) & 0xff) << 8 * i;
  return bytes;
}
inline float __log2f(float x) { return std::log2(x); }
inline std::uint32_t __float_as_uint(float x) { return std::bit_cast<std::uint32_t>(x); }
inline float __uint_as_float(std::uint32_t x) { return std::bit_cast<float>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
using std::isfinite;
using std::max;
using std::min;
