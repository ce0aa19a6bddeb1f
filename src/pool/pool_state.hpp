// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/kv_pool.hpp>

#include "src/pool/huge_pages.hpp"
#include "src/pool/page_table.hpp"
#include "src/pool/staging.hpp"
#include "src/pool/write_rows.hpp"

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <cstring>
#include <optional>
#include <type_traits>
#include <vector>

namespace pagoda::detail {

/// Numbers of sequences, carried to the device as the argument of a kernel: no memory for them is needed, and nobody
/// waits.
template <class ExecutionSpace>
struct SelectKernel {
  static constexpr int most = 512;  // 2 KiB; Kokkos passes up to 4 KiB by value
  int* ids;
  int values[most];
  KOKKOS_FUNCTION void operator()(int i) const { ids[i] = values[i]; }
};

/// Checks options, fills in the defaults. owner: begins every message.
PoolOptions checked(const std::string& owner, PoolOptions options, bool contiguous);

/// All that a pool has: the table on the host, the storage and the table's copy on the device, and the way between
/// them.
template <class T, class ExecutionSpace>
struct PoolState {
  using MemorySpace = typename ExecutionSpace::memory_space;
  using Storage     = Kokkos::View<T****, Kokkos::LayoutRight, MemorySpace>;

  PoolOptions options;
  PageTable table;
  using Memory = Kokkos::View<std::byte*, MemorySpace>;
  Memory k_memory, v_memory;
  Storage k, v;                                                         ///< (page, token, head, dim) in options.order
  Kokkos::View<int*, MemorySpace> seq_lens;                             ///< [max_sequences]
  Kokkos::View<int*, MemorySpace> sequence_ids;                         ///< [max_sequences], the selection
  Kokkos::View<int**, Kokkos::LayoutRight, MemorySpace> block_table{};  ///< [max_sequences, pages]; paged only
  StagingRing<ExecutionSpace> ring;
  std::vector<int> selected;  ///< what sequence_ids holds
  std::optional<Plan<ExecutionSpace>> plan;
  std::vector<TokenRun> runs, copies;  ///< scratch of one call
  std::vector<TableUpdate> updates;

  PoolState(const ExecutionSpace& exec, const std::string& owner, const PoolOptions& o, bool contiguous)
      : options(o),
        table({owner, o.max_sequences, o.max_seq_len, o.page_size, o.num_pages, contiguous}),
        k_memory(memory(exec, "Pagoda::KVPool::k", o, o.head_dim)),
        v_memory(memory(exec, "Pagoda::KVPool::v", o, o.head_dim_v)),
        k(storage(k_memory, o, o.head_dim)),
        v(storage(v_memory, o, o.head_dim_v)),
        seq_lens(Kokkos::view_alloc(exec, "Pagoda::KVPool::seq_lens"), o.max_sequences),
        sequence_ids(Kokkos::view_alloc(exec, "Pagoda::KVPool::sequence_ids"), o.max_sequences),
        ring(ring_bytes(o.max_sequences)),
        selected(o.max_sequences, 0) {
    if (contiguous) return;
    const int columns = table.pages_for(o.max_seq_len);
    block_table       = decltype(block_table)(
        Kokkos::view_alloc(exec, Kokkos::WithoutInitializing, "Pagoda::KVPool::block_table"), o.max_sequences, columns);
    Kokkos::deep_copy(exec, block_table, -1);
  }

  const std::string& owner() const { return table.shape().owner; }
  TensorRef k_ref() const { return tensor_ref(as_cache_view<T, MemorySpace>(k, options.order)); }
  TensorRef v_ref() const { return tensor_ref(as_cache_view<T, MemorySpace>(v, options.order)); }
  RowShape row_shape() const {
    return {options.num_kv_heads, options.head_dim, options.head_dim_v,
            std::int64_t(options.num_pages) * options.page_size};
  }
  RowPair cache() const { return {cache_rows(k_ref()), cache_rows(v_ref())}; }

  void check(const char* call, const TensorRef& new_k, const TensorRef& new_v, std::int64_t tokens) const {
    check_rows((owner() + call).c_str(), new_k, new_v, tokens, options.num_kv_heads, options.head_dim,
               options.head_dim_v);
  }

  /// Carries the copies, then the runs and what has changed in the table, to the device.
  void flush(const ExecutionSpace& exec, const TensorRef& new_k, const TensorRef& new_v) {
    updates.clear();
    const std::int64_t columns = static_cast<std::int64_t>(block_table.extent(1));
    table.take_changes([&](int slot, int length) { updates.push_back({slot, length, true}); },
                       [&](int slot, int column, int page) {
                         if (block_table.data()) updates.push_back({slot * columns + column, page, false});
                       });
    launch("Pagoda::KVPool::copy", exec, copies, cache(), {});
    launch("Pagoda::KVPool::write", exec, runs, {caller_rows(new_k), caller_rows(new_v)}, updates);
    copies.clear();
    runs.clear();
  }

 private:
  /// A View's data lies 128 bytes behind its allocation, where Kokkos keeps a header. There a row of 256 bytes lies
  /// across two channels of a GPU's memory, which costs decodes 4 to 6% (bench/NOTES.md): rows begin further on.
  static constexpr std::size_t alignment = 1024;

  static Memory memory(const ExecutionSpace& exec, const char* label, const PoolOptions& o, int dims) {
    const std::size_t rows  = std::size_t(o.num_pages) * o.page_size * o.num_kv_heads;
    const std::size_t bytes = rows * dims * sizeof(T) + alignment;
    if constexpr (std::is_same_v<MemorySpace, Kokkos::HostSpace>) {
      const Memory memory(Kokkos::view_alloc(exec, Kokkos::WithoutInitializing, std::string(label)), bytes);
      ask_for_huge_pages(memory.data(), bytes);
      Kokkos::deep_copy(exec, memory, std::byte(0));
      return memory;
    } else {
      return Memory(Kokkos::view_alloc(exec, std::string(label)), bytes);
    }
  }
  static Storage storage(const Memory& memory, const PoolOptions& o, int dims) {
    const bool nhd           = o.order == KVOrder::NHD;
    const auto at            = reinterpret_cast<std::uintptr_t>(memory.data());
    std::byte* const aligned = memory.data() + ((at + alignment - 1) / alignment * alignment - at);
    return Storage(reinterpret_cast<T*>(aligned), o.num_pages, nhd ? o.page_size : o.num_kv_heads,
                   nhd ? o.num_kv_heads : o.page_size, dims);
  }

  /// 64 steps in which every sequence gets a token and a page.
  static std::size_t ring_bytes(int max_sequences) {
    const std::size_t step = max_sequences * (sizeof(TokenRun) + 2 * sizeof(TableUpdate));
    return std::clamp<std::size_t>(64 * step, std::size_t(1) << 16, std::size_t(1) << 24);
  }

  /// One launch, or as many as the ring's limit makes of long lists.
  void launch(const char* label, const ExecutionSpace& exec, std::span<const TokenRun> run_list, const RowPair& from,
              std::span<const TableUpdate> update_list) {
    while (!run_list.empty() || !update_list.empty()) {
      const std::size_t n = std::min(run_list.size(), ring.limit() / sizeof(TokenRun));
      const std::size_t m = std::min(update_list.size(), (ring.limit() - n * sizeof(TokenRun)) / sizeof(TableUpdate));
      std::byte* const at = ring.take(exec, n * sizeof(TokenRun) + m * sizeof(TableUpdate));
      if (n > 0) std::memcpy(at, run_list.data(), n * sizeof(TokenRun));
      if (m > 0) std::memcpy(at + n * sizeof(TokenRun), update_list.data(), m * sizeof(TableUpdate));
      const TableUpdates staged{reinterpret_cast<const TableUpdate*>(at + n * sizeof(TokenRun)), static_cast<int>(m),
                                seq_lens.data(), block_table.data()};
      write_rows<T>(label, exec, ListedRuns{reinterpret_cast<const TokenRun*>(at)}, static_cast<int>(n), row_shape(),
                    from, cache(), staged);
      run_list    = run_list.subspan(n);
      update_list = update_list.subspan(m);
    }
  }
};

}  // namespace pagoda::detail
