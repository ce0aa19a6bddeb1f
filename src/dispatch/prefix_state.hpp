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
#include <numeric>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

namespace pagoda::detail {

/// A list has a part for each kernel, with a plan of its own: on a GPU, entries of up to 8, 64 and 128 query rows. The
/// hand-tuned kernels of sm_90 multiply each by other instructions, or with another number of blocks.
inline constexpr int max_list_parts = 3;

/// Bounds of a PrefixDecoder, with all defaults filled in.
struct PrefixBounds {
  int max_batch, max_query_tokens;
  int max_entries, max_states;

  /// Entries of a list with the empty ones that padding adds to its parts.
  int padded_entries() const { return max_entries + max_entries / 8 + 16 * max_list_parts; }
};

/// Rounds a number of entries up, so that lists of nearly the same length launch alike: by at most 15, or an eighth.
/// The result has five significant bits.
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

/// Where partial states lie in memory: their outputs first, in this type, then their log-sum-exps.
struct StateLayout {
  std::size_t lse, bytes;

  StateLayout(const PrefixBounds& b, const DecodeHeads& heads, DType type) {
    const std::size_t rows = std::size_t(b.max_states) * heads.num_q_heads;
    lse                    = (rows * heads.head_dim_v * size_of(type) + 15) / 16 * 16;
    bytes                  = lse + rows * sizeof(float);
  }
};

/// The shape of what decodes launch.
struct ListShape {
  bool packed = false;
  std::array<int, max_list_parts> entries{};        ///< padded entries of each part
  std::array<bool, max_list_parts> has_few_rows{};  ///< whether the part has entries of PartPlan::few_queries
  bool has_chains = false;
  int queries = 0, states = 0;

  int all_entries() const { return std::accumulate(entries.begin(), entries.end(), 0); }
};

/// The plan of a part of the list.
template <class ExecutionSpace>
struct PartPlan {
  int max_queries;  ///< query tokens of an entry; entries of fewer belong to a later part, if that has room for them
  bool few_rows;    ///< entries may join the part before, and do so where they are not worth a launch of their own
  bool mixed;       ///< only if few_rows: the part before carries them out at the same time as its other entries
  bool chains;      ///< whether the kernel carries out chains
  int few_queries;  ///< most query tokens of entries that the kernel carries out as those of few rows; 0: it has no
                    ///< such
  Plan<ExecutionSpace> plan;
};

template <class ExecutionSpace>
struct PrefixState {
  using MemorySpace             = typename ExecutionSpace::memory_space;
  using Event                   = typename MachineOf<ExecutionSpace>::Stream::Event;
  static constexpr bool on_host = std::is_same_v<MemorySpace, Kokkos::HostSpace>;
  using StagingSpace            = std::conditional_t<on_host, Kokkos::HostSpace, Kokkos::SharedHostPinnedSpace>;
  /// Most query rows of the entries of each part, on GPUs and on hosts.
  static constexpr std::array<int, max_list_parts> gpu_rows{128, 64, 8};
  static constexpr int max_rows   = gpu_rows[0];
  static constexpr int num_staged = 2;

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
  std::unique_ptr<Plan<ExecutionSpace>> plain;
  std::vector<PartPlan<ExecutionSpace>> parts;  ///< of the list, those of the most query tokens first
  std::string always_plain;                     ///< why there are no plans for lists; empty: there are
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
  std::optional<DType> state_type;  ///< what the caller asked for

 private:
  void make_list_plans(const ExecutionSpace& exec, const CacheRef& kv, const DecodeOptions<MemorySpace>& options);
  /// The type of the partial states of a decode whose outputs have this type. On hosts states stay in caches.
  DType state_type_of(DType out) const {
    return state_type ? *state_type : !on_host && size_of(out) == 2 ? out : DType::fp32;
  }
  void allocate(const ExecutionSpace& exec);
  const char* stage();
  void copy(const ExecutionSpace& exec);
  std::array<bool, max_list_parts> parts_in_use(const std::vector<Entry>& entries) const;
  EntriesRef entries(int first, int count) const;
};

}  // namespace pagoda::detail
