// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/prefix.hpp>

#include "backends/machines.hpp"
#include "src/plan/prefix/planner.hpp"

#include <Kokkos_Core.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

namespace pagoda::detail {

/// Bounds of a PrefixDecoder, with all defaults filled in.
struct PrefixBounds {
  int max_batch, max_query_tokens;
  int max_entries, max_states;
  int wide_queries;    ///< query tokens of an entry
  int narrow_queries;  ///< entries with at most this number run with the narrow plan; 0: there is none

  /// Entries of a list with the empty ones that padding adds to both parts.
  int padded_entries() const { return max_entries + max_entries / 8 + 32; }
};

/// Rounds a number of entries up, so that lists of nearly the same length launch alike: by at most 15, or an eighth.
inline int padded_length(int entries) {
  int step = 16;
  while (step * 16 <= entries) step *= 2;
  return (entries + step - 1) / step * step;
}

/// Offsets in the memory of a list. Entries come last, as their number varies most: one copy takes what is used.
struct ListLayout {
  std::size_t state_begin, entries, bytes;

  explicit ListLayout(const PrefixBounds& b)
      : state_begin(std::size_t(b.max_query_tokens) * sizeof(EntryQuery)),
        entries((state_begin + (std::size_t(b.max_query_tokens) + 1) * sizeof(int) + 15) / 16 * 16),
        bytes(entries + std::size_t(b.padded_entries()) * sizeof(Entry)) {}
};

/// The shape of what decodes launch.
struct ListShape {
  bool packed = false;
  int wide = 0, narrow = 0;  ///< padded entries
  int queries = 0, states = 0;
};

template <class ExecutionSpace>
struct PrefixState {
  using MemorySpace              = typename ExecutionSpace::memory_space;
  using Event                    = typename MachineOf<ExecutionSpace>::Stream::Event;
  static constexpr bool on_host  = std::is_same_v<MemorySpace, Kokkos::HostSpace>;
  using StagingSpace             = std::conditional_t<on_host, Kokkos::HostSpace, Kokkos::SharedHostPinnedSpace>;
  static constexpr int wide_rows = 128;  ///< query rows of an entry
  /// On GPUs, query rows of narrow entries. The hand-tuned kernels of sm_90 have two blocks on a multiprocessor for up
  /// to 64 rows, and one for more.
  static constexpr int narrow_rows = 64;
  static constexpr int num_staged  = 2;

  PrefixState(const ExecutionSpace& exec, const CacheRef& kv, const DecodeOptions<MemorySpace>& options,
              const PrefixOptions& prefix);

  bool plan(const BatchPages& tables);
  void install(const ExecutionSpace& exec);
  void decode(const ExecutionSpace& exec, const CacheRef& kv, const TensorRef& q, const TensorRef& out,
              const TensorRef& lse) const;
  void set_rates(const DeviceRates& new_rates);

  int page_size = 0;  ///< 0: contiguous
  PrefixBounds bounds{};
  DecodeHeads heads{};
  std::unique_ptr<Plan<ExecutionSpace>> plain, wide, narrow;
  std::string always_plain;  ///< why there are no plans for lists; empty: there are
  DeviceRates rates;
  PrefixReport report;
  std::unique_ptr<PrefixPlanner> planner;

  // The last plan is in `staged[slot]` and has the shape `next`. Decodes read `list`, of the shape `now`.
  ListShape next, now;
  bool pending = false;  ///< next is not installed
  int slot     = 0;
  std::vector<Kokkos::View<std::byte*, StagingSpace>> staged;
  std::array<std::unique_ptr<Event>, num_staged> copied;
  std::array<bool, num_staged> in_flight{};
  Kokkos::View<std::byte*, MemorySpace> list, states;
  DType state_type = DType::fp32;

 private:
  void make_list_plans(const ExecutionSpace& exec, const CacheRef& kv, const DecodeOptions<MemorySpace>& options);
  void allocate(const ExecutionSpace& exec);
  const char* stage();
  void copy(const ExecutionSpace& exec);
  EntriesRef entries(int first, int count) const;
};

}  // namespace pagoda::detail
