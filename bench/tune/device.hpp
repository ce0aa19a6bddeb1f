// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/chosen_shape.hpp"
#include "bench/stream/gpu_read.hpp"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

/// Times the hand-tuned kernels in any launch shape, without Kokkos.
namespace pagoda::tune {

/// A batch of sequences of one length (except the first, if first_tokens is set), contiguous or in shuffled pages of 16
/// tokens, in NHD or HND order.
struct Batch {
  tuned::Type type = tuned::Type::fp16;
  int num_q_heads = 32, num_kv_heads = 8;
  int head_dim = 128, head_dim_v = 128;  ///< if different: a latent cache
  int num_q_tokens = 1;                  ///< of each sequence
  int sequences = 1, tokens = 16;
  int first_tokens = 0;  ///< tokens of the first sequence; 0: as the others. Paged only
  bool paged       = false;
  bool by_head     = false;  ///< HND

  bool latent() const { return head_dim != head_dim_v; }
  std::int64_t rows() const { return std::int64_t(sequences) * num_kv_heads; }  ///< one for each sequence and kv head
  std::int64_t all_tokens() const {
    return std::int64_t(sequences) * tokens + (first_tokens ? first_tokens - tokens : 0);
  }
  int longest() const { return first_tokens > tokens ? first_tokens : tokens; }
  std::size_t cache_bytes() const {
    return std::size_t(all_tokens()) * num_kv_heads * (latent() ? 1 : 2) * tuned::row_bytes(type, head_dim);
  }
};

/// The current device, with memory to read from.
class Device {
 public:
  Device();
  ~Device();
  Device(const Device&)            = delete;
  Device& operator=(const Device&) = delete;

  /// The library's description of the device, with the built-in speed.
  const tuned::Device& facts() const { return facts_; }
  const std::string& name() const { return name_; }

  /// Microseconds of one decode, cold, in a CUDA graph of several. shape: one of `spread` for the batch; one overload
  /// for each kind of kernel.
  double decode_us(const Batch& batch, const tuned::LaunchShape& shape);
  /// Microseconds of a bare read.
  double read_us(std::size_t bytes);

  tuned::Problem problem_of(const Batch& batch) const;

 private:
  void set_up(const Batch& batch);                            ///< lengths and page table
  using Launch = std::function<bool(const tuned::Problem&)>;  ///< false: not launched
  double time(const Batch& batch, const Launch& launch);
  bench::gpu::Buffers buffers() const;

  tuned::Device facts_{};
  std::string name_;
  cudaStream_t stream_ = nullptr;
  std::byte *data_ = nullptr, *evict_ = nullptr, *small_ = nullptr, *workspace_ = nullptr;
  std::size_t data_bytes_ = 0, evict_bytes_ = 0;
  int *lengths_ = nullptr, *pages_ = nullptr, *page_indptr_ = nullptr;
  unsigned* sink_ = nullptr;
  std::byte* out_ = nullptr;
};

}  // namespace pagoda::tune
