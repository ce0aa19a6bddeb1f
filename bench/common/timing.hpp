// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bench/common/case.hpp"
#include "bench/stream/gpu_space.hpp"
#include "bench/stream/stream_read.hpp"

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

namespace pagoda::bench {

/// Bare reads of the bytes of each case. A read is measured again when it is old, because a machine's clocks and
/// temperature drift.
template <class ExecutionSpace>
class Floors {
 public:
  explicit Floors(const ExecutionSpace& exec) : exec_(exec) {}

  /// memory: the memory that the kernel reads.
  const Reading& of(std::size_t bytes, int calls, std::span<const std::byte> memory) {
    if (memory.data() != memory_.data() || memory.size() != memory_.size()) {
      known_.clear();
      reader().read_from(memory.data(), memory.size());
      memory_ = memory;
    }
    using Clock      = std::chrono::steady_clock;
    Entry& entry     = known_[bytes];
    const bool known = entry.reading.bytes != 0;
    if (!known || Clock::now() - entry.when > std::chrono::seconds(20))
      entry = {reader().read(bytes, samples, calls), Clock::now()};
    return entry.reading;
  }

  /// Created on first use, as it holds much memory.
  StreamReader<ExecutionSpace>& reader() {
    if (!reader_) reader_.emplace(exec_, 0);
    return *reader_;
  }

 private:
  static constexpr int samples = 15;
  struct Entry {
    Reading reading;
    std::chrono::steady_clock::time_point when;
  };
  ExecutionSpace exec_;
  std::optional<StreamReader<ExecutionSpace>> reader_;
  std::span<const std::byte> memory_;
  std::map<std::size_t, Entry> known_;  ///< reads of that memory
};

/// Seconds of one call, of `rotation.calls` in a row; `call(i)` is a call on cache i. On NVIDIA and AMD GPUs all calls
/// are one graph, and this is the median of its replays. Elsewhere they run between two fences, and this is the fastest
/// sample, as for bare reads.
template <class ExecutionSpace, class Call>
double seconds_of_call(const ExecutionSpace& exec, const Rotation& rotation,
                       [[maybe_unused]] const StreamReader<ExecutionSpace>& reader, const Call& call) {
  call(0);  // first-call costs
  exec.fence("Pagoda::bench::first_call");
#if defined(PAGODA_BENCH_GPU)
  if constexpr (gpu::has_graphs<ExecutionSpace>) {
    const gpu::Graph graph(gpu::stream_of(exec), [&] {
      for (int i = 0; i < rotation.calls; ++i) call(i % rotation.caches);
    });
    return graph.median_seconds(17, [&] { reader.evict(); }) / rotation.calls;
  } else
#endif
  {
    constexpr bool on_host        = std::is_same_v<typename ExecutionSpace::memory_space, Kokkos::HostSpace>;
    constexpr double most_seconds = 2;                            // of all samples, beyond the first three
    int next                      = rotation.caches > 1 ? 1 : 0;  // cache 0 is warm, and the fastest sample counts
    int repeats                   = on_host ? 1 : rotation.calls;
    double least                  = std::numeric_limits<double>::infinity();
    const Kokkos::Timer all;
    for (int sample = 0; sample < 3 || (sample < 30 && all.seconds() < most_seconds); ++sample) {
      exec.fence("Pagoda::bench::sample");
      const Kokkos::Timer timer;
      for (int i = 0; i < repeats; ++i) call(std::exchange(next, (next + 1) % rotation.caches));
      exec.fence("Pagoda::bench::sample");
      const double seconds = timer.seconds();
      least                = std::min(least, seconds / repeats);
      if (seconds < 1e-3) repeats *= 2;  // more repeats, so that the fences do not count
    }
    return least;
  }
}

}  // namespace pagoda::bench
