// SPDX-License-Identifier: Apache-2.0
#include "src/dispatch/list_rates.hpp"

#include "backends/host/isa.hpp"
#include "src/base/spaces.hpp"
#if defined(KOKKOS_ENABLE_CUDA)
#include "backends/cuda/rates.hpp"
#include "backends/cuda/stream.hpp"
#include "backends/cuda/tuned/decode.hpp"
#endif

#if defined(KOKKOS_ENABLE_HIP)
#include "backends/hip/rates.hpp"
#endif

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <type_traits>

namespace pagoda::detail {

namespace {

/// Threads of a host. group: query rows of a query token. most_rows: those of the largest tile that lists have.
///
/// Tiles of 1, 4 and 8 rows were fitted to decodes of fp16 and bf16 (head_dim 128) by AMD EPYCs. With AVX-512, a thread
/// reads a key and a value in 34 ns from memory and in 14 ns from caches, and multiplies them in 14, 26 and 90 ns with
/// 1, 4 and 8 query rows, the last in a list; with AVX2, in 25, 43 and 102 ns. The units are then at half of their peak
/// or more, so packing such tiles gains with few query heads to a kv head, and rarely with four.
///
/// ManyRowsFragment takes 100 ns and 7.6 ns for each row, with AVX2: it multiplies only rows that an item has. It was
/// not measured with AVX-512, and is assumed to be as fast.
DeviceRates host_rates(int threads, int group, int most_rows, bool has_avx512) {
  DeviceRates r;
  r.memory_bytes_per_us  = 1.5e4 * threads;
  r.state_bytes_per_us   = 3e3 * threads;
  r.cache_bytes_per_us   = 3.65e4 * threads;
  r.cache_bytes          = 32e6;
  r.tiles                = has_avx512 ? std::vector<RowTile>{{1, 3.65e4}, {4, 8e4}, {8, 4.55e4}}
                                      : std::vector<RowTile>{{1, 2e4}, {4, 4.75e4}, {8, 4e4}};
  const auto add_to_many = [&](std::vector<RowTile>& tiles) {
    for (int rows = tiles.back().rows < 8 ? 8 : 16; rows <= most_rows; rows += 8)
      tiles.push_back({rows, 512e3 * rows / (100 + 7.6 * rows)});
  };
  if (most_rows > 16) {  // not those of AMX, which were not measured
    r.plain_tiles = r.tiles;
    add_to_many(r.plain_tiles);
    // Lists take the small tiles only for entries of one query token.
    while (r.tiles.size() > 1 && r.tiles[r.tiles.size() - 2].rows >= group) r.tiles.pop_back();
    add_to_many(r.tiles);
  }
  for (auto* const tiles : {&r.tiles, &r.plain_tiles})
    for (RowTile& tile : *tiles) tile.flops_per_us *= threads;
  r.teams   = threads;
  r.item_us = 0.5;
  r.list_us = 20;
  return r;
}

#if defined(KOKKOS_ENABLE_CUDA)

/// The rates of an H200, scaled to the device.
DeviceRates cuda_rates(const Kokkos::Cuda& exec, const Schedule& plain, std::span<const Schedule* const> parts,
                       int page_size, int state_bytes) {
  const CudaDeviceGuard guard(exec.cuda_device());
  tuned::Device device    = tuned::Device::current();
  device.num_sms          = std::min(device.num_sms, plain.multiprocessors);
  const tuned::Speed h200 = {};
  constexpr int h200_sms  = 132;
  DeviceRates r           = h200_rates(plain, parts, page_size, state_bytes);
  // Bandwidth was measured on the device or follows from its memory clock. On-chip work scales with clock and
  // multiprocessors.
  const double memory = device.speed.bytes_per_us / h200.bytes_per_us;
  const double clock = device.speed.sm_bytes_per_us / h200.sm_bytes_per_us, sms = double(device.num_sms) / h200_sms;
  r.memory_bytes_per_us *= memory, r.state_bytes_per_us *= memory;
  r.cache_bytes_per_us = std::max(r.cache_bytes_per_us * clock * sms, r.memory_bytes_per_us);
  for (auto* const tiles : {&r.tiles, &r.plain_tiles})
    for (RowTile& tile : *tiles) tile.flops_per_us *= clock * sms, tile.item_us /= clock;
  r.item_us /= clock;
  r.teams   = 2 * device.num_sms;
  int bytes = 0;
  check_cuda(cudaDeviceGetAttribute(&bytes, cudaDevAttrL2CacheSize, exec.cuda_device()), "cudaDeviceGetAttribute");
  r.cache_bytes = bytes;
  return r;
}

#endif

#if defined(KOKKOS_ENABLE_HIP)

DeviceRates hip_rates(const Kokkos::HIP& exec, const Schedule& lists) {
  const hipDeviceProp_t& device = exec.hip_device_prop();
  const hip::Card* const card =
      hip::find_card(device.gcnArchName, device.multiProcessorCount, static_cast<double>(device.totalGlobalMem) * 1e-9);
  if (!card) return {};
  const bool matrix = size_of(lists.kernel.probability_type) == 2;
  return hip::rates_of(*card, lists.multiprocessors, lists.split.num_teams, matrix, lists.kernel.row_tile);
}

#endif

}  // namespace

template <class ExecutionSpace>
DeviceRates list_rates(const ExecutionSpace& exec, [[maybe_unused]] const Schedule& plain,
                       [[maybe_unused]] std::span<const Schedule* const> parts, [[maybe_unused]] int page_size,
                       [[maybe_unused]] int state_bytes) {
#if defined(KOKKOS_ENABLE_CUDA)
  if constexpr (std::is_same_v<ExecutionSpace, Kokkos::Cuda>)
    return parts.empty() ? DeviceRates{} : cuda_rates(exec, plain, parts, page_size, state_bytes);
#endif
#if defined(KOKKOS_ENABLE_HIP)
  if constexpr (std::is_same_v<ExecutionSpace, Kokkos::HIP>)
    return parts.empty() ? DeviceRates{} : hip_rates(exec, *parts.front());
#endif
  if constexpr (std::is_same_v<typename ExecutionSpace::memory_space, Kokkos::HostSpace>) {
    return host_rates(exec.concurrency(), plain.shape.group(), parts.empty() ? 0 : parts.front()->kernel.row_tile,
                      HostIsa(plain.kernel.isa) >= HostIsa::avx512);
  } else {
    return {};  // of an unknown machine
  }
}

#define PAGODA_INSTANTIATE(Space) \
  template DeviceRates list_rates<Space>(const Space&, const Schedule&, std::span<const Schedule* const>, int, int);
PAGODA_FOR_EACH_SPACE(PAGODA_INSTANTIATE)
#undef PAGODA_INSTANTIATE

}  // namespace pagoda::detail
