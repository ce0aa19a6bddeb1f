// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bench/stream/gpu_runtime.hpp"

#include <cstddef>
#include <span>

/// A bare read of GPU memory by plain CUDA or HIP kernels. Their unit does not include Kokkos, because on CUDA that
/// adds 0.1 to 0.24 us to each launch of a unit.
namespace pagoda::bench::gpu {

/// One way of reading: how the bytes are divided, how many loads of 16 bytes a thread has in flight, and how many
/// thread blocks a multiprocessor has.
struct Shape {
  const char* name;
  const void* kernel;
  int blocks_per_sm;
};

/// The shapes that time_read tries.
std::span<const Shape> shapes();

/// Reads bytes (a multiple of 16) at data (aligned to 16). In effect nothing is written: `sink`, 4 bytes, only if the
/// fold of all words equals one value of 2^128. Can be captured in a graph.
void launch_read(const Shape& shape, const void* data, std::size_t bytes, unsigned* sink, Stream stream);

/// The memory that time_read reads. Both are device memory, aligned to 16.
struct Buffers {
  const std::byte* data;  ///< read in rotated windows
  std::size_t data_bytes;
  const std::byte* evict;  ///< read before each sample, to evict `data` from the cache
  std::size_t evict_bytes;
  unsigned* sink;
};

struct Time {
  double seconds;
  const char* shape;
};

/// Reads all of `evict`.
void evict(const Buffers& buffers, Stream stream);

/// Median time of one cold read of exactly `bytes`, inside a graph of `launches` (0: enough), by the fastest shape. The
/// fastest is found with a third of the samples.
Time time_read(const Buffers& buffers, std::size_t bytes, int samples, Stream stream, int launches = 0);

/// Bytes of the last-level cache of the current device. HIP does not report the cache between L2 and memory, so on AMD
/// GPUs it is that of backends/hip/cards.hpp.
std::size_t cache_bytes();

}  // namespace pagoda::bench::gpu
