// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bench/common/case.hpp"

#include <cstdint>
#include <string>
#include <vector>

/// The experiments of the A40 study: fp32, one head, head_dim 128. Independent of the device. Kernels use Kokkos (the
/// library's generic backend) unless the name contains cuda.
/// Source: Heidari et al., "Efficient Decode Attention: Flash-Decoding with Paged KV Caches", sections VI and VII.
namespace pagoda::bench::study {

enum class Work {
  flash,                     ///< K1: the library's decode of one sequence
  three_kernels,             ///< K1: bench/baseline
  cuda_flash,                ///< K1: the library's decode by its hand-tuned CUDA kernel
  cuda_three_kernels,        ///< K1: bench/baseline in raw CUDA
  cpu_reference,             ///< K1: pagoda::reference, one core, float64
  flash_end_to_end,          ///< K1: with copies of keys and values to the device and of the output back
  three_kernels_end_to_end,  ///< K1
  splits,                    ///< K2: split by hand into `splits` batch entries, merged
  cuda_splits,               ///< K2: the same by the hand-tuned CUDA kernel
  capacity,                  ///< K3: sequences of `tokens` that a pool of `budget` bytes admits
  serial_copy,               ///< K4: a call for each sequence, its block table copied to the device before it
  serial,                    ///< K4: a call for each sequence
  batched                    ///< K4: one call
};

struct StudyCase {
  Work work{};
  int tokens          = 0;  ///< of a sequence
  int splits          = 0;
  int page_size       = 0;  ///< 0: contiguous
  int max_seq_len     = 0;  ///< K3
  std::int64_t budget = 0;  ///< K3: bytes

  /// study/K1/flash/T4096, study/K1/cuda-flash/T4096, study/K2/splits128/T4096, study/K3/paged/max2048/4GiB,
  /// study/K4/batched/T512/page16
  std::string name() const;
};

constexpr int num_sequences = 64;  ///< in K4

/// `batch` sequences of `tokens` as a problem of bench/decode.
Case problem(int batch, int tokens, int page_size);

/// All cases. Cases of one length are adjacent, as they share data that is slow to make. cuda: with the CUDA kernels.
std::vector<StudyCase> device_cases(bool cuda);
/// A list that takes minutes on two cores.
std::vector<StudyCase> host_cases();

}  // namespace pagoda::bench::study
