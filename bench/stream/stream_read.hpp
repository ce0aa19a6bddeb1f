// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bench/stream/gpu_space.hpp"
#include "bench/stream/portable_read.hpp"

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>
#if defined(__unix__)
#include <unistd.h>
#endif

namespace pagoda::bench {

/// Time of a bare read of `bytes`: the lower limit for every kernel that must read them.
struct Reading {
  std::size_t bytes = 0;
  double seconds    = 0;
  std::string shape;  ///< the read kernel that was fastest

  double gb_per_s() const { return static_cast<double>(bytes) / seconds * 1e-9; }
};

namespace detail {

/// Random bits, one 64-bit word for each index (the output function of splitmix64).
template <class MemorySpace>
struct FillRandom {
  Kokkos::View<std::uint64_t*, MemorySpace> words;

  KOKKOS_FUNCTION void operator()(std::size_t i) const {
    std::uint64_t z = (i + 1) * 0x9e3779b97f4a7c15u;
    z               = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z               = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    words(i)        = z ^ (z >> 31);
  }
};

inline std::size_t host_cache_bytes() {
  long bytes = 0;
#if defined(_SC_LEVEL3_CACHE_SIZE)
  bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
#endif
  return bytes > 0 ? static_cast<std::size_t>(bytes) : std::size_t(64) << 20;
}

}  // namespace detail

/// Times bare reads of device memory: random bits, cold (windows are rotated through a buffer much larger than the
/// last-level cache), by the fastest of a small set of kernels. On NVIDIA and AMD GPUs several reads run in a graph.
template <class ExecutionSpace>
class StreamReader {
 public:
  using memory_space = typename ExecutionSpace::memory_space;

  /// Allocates and fills a buffer for reads of up to `longest` bytes. It is at least several times the cache, so that a
  /// window leaves the cache before it is read again. Longer reads are timed as several reads of the whole buffer.
  StreamReader(const ExecutionSpace& exec, std::size_t longest)
      : exec_(exec),
        data_bytes_(round_up(std::max(longest, (on_host ? 8 : 32) * cache_bytes()))),
        evict_bytes_(round_up(2 * cache_bytes())),
        words_(Kokkos::view_alloc(exec, Kokkos::WithoutInitializing, "Pagoda::bench::stream_buffer"),
               (data_bytes_ + evict_bytes_) / sizeof(std::uint64_t)),
        data_(reinterpret_cast<const std::byte*>(words_.data())),
        evict_(data_ + data_bytes_),
        folds_("Pagoda::bench::stream_folds", static_cast<std::size_t>(std::max(exec.concurrency(), 1))) {
    Kokkos::parallel_for("Pagoda::bench::stream_fill",
                         Kokkos::RangePolicy<ExecutionSpace, Kokkos::IndexType<std::size_t>>(exec, 0, words_.extent(0)),
                         detail::FillRandom<memory_space>{words_});
    exec.fence("Pagoda::bench::stream_fill");
  }

  /// Later reads use this memory instead (aligned to 16, filled by the caller, kept alive by it). The speed depends on
  /// the address by some percent, so the floor must read the memory that the kernel reads.
  void read_from(const void* data, std::size_t bytes) {
    data_       = static_cast<const std::byte*>(data);
    data_bytes_ = bytes / 16 * 16;
    next_       = 0;
  }

  /// Time of a read of exactly `bytes`, rounded up to 16, from `samples` samples of each kernel. launches: reads in one
  /// graph (0: enough that its start does not count).
  Reading read(std::size_t bytes, int samples = 15, int launches = 0) {
    const std::size_t asked = round_up(std::max<std::size_t>(bytes, 1));
    const std::size_t once  = std::min(asked, data_bytes_);
    Reading r               = time(once, std::max(samples, 1), launches);
    r.seconds *= static_cast<double>(asked) / static_cast<double>(once);
    r.bytes = asked;
    return r;
  }

  /// Where reads are timed in a graph: evicts the caches as before each sample, for other timed kernels. Elsewhere does
  /// nothing.
  void evict() const {
#if defined(PAGODA_BENCH_GPU)
    if constexpr (gpu::has_graphs<ExecutionSpace>) gpu::evict(buffers(), gpu::stream_of(exec_));
#endif
  }

  /// Bytes of the last-level cache.
  static std::size_t cache_bytes() {
#if defined(PAGODA_BENCH_GPU)
    if constexpr (gpu::has_graphs<ExecutionSpace>) return gpu::cache_bytes();
#endif
    return detail::host_cache_bytes();
  }

 private:
  static constexpr bool on_host = std::is_same_v<memory_space, Kokkos::HostSpace>;

  static std::size_t round_up(std::size_t bytes) { return (bytes + 15) / 16 * 16; }

#if defined(PAGODA_BENCH_GPU)
  gpu::Buffers buffers() const {
    return {data_, data_bytes_, evict_, evict_bytes_, reinterpret_cast<unsigned*>(folds_.data())};
  }
#endif

  Reading time(std::size_t bytes, int samples, [[maybe_unused]] int launches) {
    if constexpr (on_host) {
      return fastest(bytes, samples,
                     {{"1 run a thread", &portable::host_read<1, ExecutionSpace, Folds>},
                      {"2 runs a thread", &portable::host_read<2, ExecutionSpace, Folds>},
                      {"4 runs a thread", &portable::host_read<4, ExecutionSpace, Folds>}});
    }
#if defined(PAGODA_BENCH_GPU)
    else if constexpr (gpu::has_graphs<ExecutionSpace>) {
      const gpu::Time t = gpu::time_read(buffers(), bytes, samples, gpu::stream_of(exec_), launches);
      return {bytes, t.seconds, t.shape};
    }
#endif
    else {
      return fastest(bytes, samples, {{"strided 4", &portable::device_read<ExecutionSpace, Folds>}});
    }
  }

  using Folds = Kokkos::View<std::uint64_t*, memory_space>;
  struct Shape {
    const char* name;
    void (*launch)(const ExecutionSpace&, const std::byte*, std::size_t, const Folds&);
  };

  Reading fastest(std::size_t bytes, int samples, const std::vector<Shape>& shapes) {
    Reading best;
    for (const Shape& shape : shapes) {
      const double s = least_seconds(shape, bytes, samples);
      if (best.seconds == 0 || s < best.seconds) best = {bytes, s, shape.name};
    }
    return best;
  }

  /// The fastest sample, because other work on a CPU only adds time.
  double least_seconds(const Shape& shape, std::size_t bytes, int samples) {
    // Enough reads between two fences that the fences do not count.
    const int reads = static_cast<int>(std::clamp<std::size_t>((std::size_t(1) << 24) / bytes, 1, 16));
    double least    = std::numeric_limits<double>::infinity();
    for (int sample = -1; sample < samples; ++sample) {
      exec_.fence("Pagoda::bench::stream_read");
      const Kokkos::Timer timer;
      for (int i = 0; i < reads; ++i) {
        if (next_ + bytes > data_bytes_) next_ = 0;
        shape.launch(exec_, data_ + next_, bytes, folds_);
        next_ += bytes;
      }
      exec_.fence("Pagoda::bench::stream_read");
      if (sample >= 0) least = std::min(least, timer.seconds() / reads);
    }
    return least;
  }

  ExecutionSpace exec_;
  std::size_t data_bytes_, evict_bytes_;
  Kokkos::View<std::uint64_t*, memory_space> words_;
  const std::byte *data_, *evict_;
  Folds folds_;
  std::size_t next_ = 0;
};

}  // namespace pagoda::bench
