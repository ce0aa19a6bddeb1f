// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/kv_cache.hpp>
#include <pagoda/kv_pool.hpp>

#include "src/pool/page_table.hpp"
#include "src/pool/shared_decode.hpp"
#include "src/pool/staging.hpp"
#include "src/pool/write_rows.hpp"

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace pagoda::detail {

/// Writes sequence numbers, which are passed as the kernel's argument, so no copy and no wait is needed. A launch
/// carries at most `most` of them; earlier launches have staged the first num_staged.
template <class ExecutionSpace>
struct SelectKernel {
  static constexpr int most = 512;  // 2 KiB; Kokkos passes up to 4 KiB by value
  int* ids;
  const int* staged;
  int num_staged;
  int values[most];
  KOKKOS_FUNCTION void operator()(int i) const { ids[i] = i < num_staged ? staged[i] : values[i - num_staged]; }
};

/// The sequences that are selected for a cache of the pool. kv and decode have one selection each and do not change
/// each other's.
template <class ExecutionSpace>
struct SlotSelection {
  Kokkos::View<int*, typename ExecutionSpace::memory_space> ids;  ///< [max_sequences]
  std::vector<int> held;                                          ///< contents of ids

  SlotSelection(const ExecutionSpace& exec, int max_sequences)
      : ids(Kokkos::view_alloc(exec, "Pagoda::KVPool::sequence_ids"), max_sequences), held(max_sequences, 0) {}
};

/// Checks options and fills in the defaults. Every message begins with `owner`.
PoolOptions checked(const std::string& owner, PoolOptions options, bool contiguous);

/// The state of a pool: the table on the host, the storage, the device's copy of the table, and the staging between
/// them.
///
/// Strong exception guarantee: if a call throws, the table, its copy on the device and all rows of sequences are as
/// before. Copies and new rows are launched first; they write only where no sequence has a token yet. All changes of
/// the device's tables follow in one launch, the last. If anything fails before it, PageTable::undo reverts the host's
/// table. Nothing after it can fail. Pages that the call evicted return to the index, unless an earlier launch of the
/// call may have written to them.
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
  Kokkos::View<int**, Kokkos::LayoutRight, MemorySpace> block_table{};  ///< [max_sequences, pages]; paged only
  StagingRing<ExecutionSpace> ring;
  SlotSelection<ExecutionSpace> for_kv, for_decode;
  Kokkos::View<int*, MemorySpace> staged_ids;  ///< a selection in flight
  // What decodes with: one of the two, or neither.
  std::unique_ptr<const Plan<ExecutionSpace>> plan;
  std::unique_ptr<SharedDecode<ExecutionSpace>> shared;
  PrefixReport plain_report{.plain_because = "there is no plan"};  ///< of decodes without `shared`
  HostTables host_tables;                                          ///< of the last batch_pages or plan
  std::vector<TokenRun> runs, copies;                              ///< scratch of one call
  std::vector<TableUpdate> updates;
  std::vector<TableClear> clears;
  bool wrote = false;  ///< the call has launched something
  // Made once, because Kokkos takes labels as strings and a step must not allocate.
  const std::string copy_label{"Pagoda::KVPool::copy"}, write_label{"Pagoda::KVPool::write"},
      select_label{"Pagoda::KVPool::select"};

  PoolState(const ExecutionSpace& exec, const std::string& owner, const PoolOptions& o, bool contiguous)
      : options(o),
        table({owner, o.max_sequences, o.max_seq_len, o.page_size, o.num_pages, contiguous}),
        k_memory(memory(exec, "Pagoda::KVPool::k", o, o.head_dim)),
        v_memory(memory(exec, "Pagoda::KVPool::v", o, o.head_dim_v)),
        k(storage(k_memory, o, o.head_dim)),
        v(storage(v_memory, o, o.head_dim_v)),
        seq_lens(Kokkos::view_alloc(exec, Kokkos::WithoutInitializing, "Pagoda::KVPool::seq_lens"), o.max_sequences),
        ring(ring_bytes(o, contiguous ? 0 : table.pages_for(o.max_seq_len))),
        for_kv(exec, o.max_sequences),
        for_decode(exec, o.max_sequences),
        staged_ids(Kokkos::view_alloc(exec, Kokkos::WithoutInitializing, "Pagoda::KVPool::staged_ids"),
                   o.max_sequences),
        host_tables(o.max_sequences) {
    const int columns = contiguous ? 0 : table.pages_for(o.max_seq_len);
    if (!contiguous)
      block_table =
          decltype(block_table)(Kokkos::view_alloc(exec, Kokkos::WithoutInitializing, "Pagoda::KVPool::block_table"),
                                o.max_sequences, columns);
    // The kernel of all later calls writes the empty tables, so that Kokkos makes the allocations of its first launch
    // here.
    for (int slot = 0; slot < o.max_sequences; ++slot) {
      updates.push_back({slot, -1, 0});
      if (!contiguous) clears.push_back({slot, 0, columns});
    }
    launch_last(exec, {}, {});
  }

  /// Why decodes with these options never read lists, or null.
  const char* always_plain(const DecodeOptions<MemorySpace>& with) const {
    if (table.shape().contiguous) return "the cache is contiguous";
    if (options.share_prefixes == SharePrefixes::never) return "PoolOptions::share_prefixes is never";
    if (with.checked) return "the plan is checked, and lists are not";
    if (with.exactness != Exactness::fast) return "the plan's exactness is not fast, and that of lists is";
    if (with.cu_seqlens_q.data()) return "cu_seqlens_q is in device memory, and the pool plans on the host";
    return nullptr;
  }

  /// `shared`. Throws InvalidArgument with the reason if decodes are always plain.
  SharedDecode<ExecutionSpace>& shares(const char* call) const {
    require(shared != nullptr, owner(), call, ": decodes read no lists, because ", plain_report.plain_because);
    return *shared;
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
    check_rows(owner().c_str(), call, new_k, new_v, tokens, options.num_kv_heads, options.head_dim, options.head_dim_v);
  }

  /// Runs one call: `change` alters the table and lists copies within the cache and runs of the new rows.
  template <class Change>
  void transact(const ExecutionSpace& exec, const TensorRef& new_k, const TensorRef& new_v, const Change& change) {
    copies.clear();
    runs.clear();
    wrote = false;
    try {
      change();
      flush(exec, {caller_rows(new_k), caller_rows(new_v)});
    } catch (...) {
      table.undo(wrote);
      throw;
    }
    table.mark_synced();
  }

  void check_page(const char* call, int page) const {
    require(page >= 0 && page < options.num_pages, owner(), call, "page is ", page, "; allowed: 0 to ",
            options.num_pages - 1);
  }

  /// Throws InvalidArgument unless all slots hold sequences and are at most max_sequences.
  void check_slots(const char* call, std::span<const int> slots) const {
    require(slots.size() <= for_kv.held.size(), owner(), call, "slots has ", slots.size(),
            " entries; allowed: up to max_sequences = ", for_kv.held.size());
    for (std::size_t i = 0; i < slots.size(); ++i)
      require(table.holds(slots[i]), owner(), call, "slots[", i, "] is ", slots[i],
              ", which holds no sequence; allowed: a slot that admit or fork returned");
  }

  /// If the slots differ from the selection, copies them to the device. A single launch changes the selection.
  void select(const ExecutionSpace& exec, std::span<const int> slots, SlotSelection<ExecutionSpace>& selection) {
    using Kernel      = SelectKernel<ExecutionSpace>;
    std::size_t first = 0, end = slots.size();
    while (first < end && slots[first] == selection.held[first]) ++first;
    while (first < end && slots[end - 1] == selection.held[end - 1]) --end;
    if (first == end) return;
    const auto changed = slots.subspan(first, end - first);
    const auto write   = [&](int* to, std::size_t from, std::size_t staged) {
      Kernel kernel{to, staged_ids.data(), static_cast<int>(staged), {}};
      const auto part = changed.subspan(from, std::min<std::size_t>(Kernel::most, changed.size() - from));
      std::copy(part.begin(), part.end(), kernel.values);
      // The chunk size is given: to choose one, Kokkos 4 makes an execution space, which allocates on a host.
      const Kokkos::RangePolicy<ExecutionSpace> policy(exec, 0, static_cast<int>(staged + part.size()),
                                                         Kokkos::ChunkSize(64));
      Kokkos::parallel_for(
          select_label, Kokkos::Experimental::require(policy, Kokkos::Experimental::WorkItemProperty::HintLightWeight),
          kernel);
    };
    std::size_t staged = 0;
    for (; changed.size() - staged > Kernel::most; staged += Kernel::most) write(staged_ids.data() + staged, staged, 0);
    write(selection.ids.data() + first, staged, staged);
    std::copy(changed.begin(), changed.end(), selection.held.begin() + static_cast<std::ptrdiff_t>(first));
  }

 private:
  Memory memory(const ExecutionSpace& exec, const char* label, const PoolOptions& o, std::size_t dims) const {
    return allocate_cache(exec, label,
                          cache_bytes(table.shape().owner, o.num_pages, o.page_size, o.num_kv_heads, dims * sizeof(T)));
  }
  static Storage storage(const Memory& memory, const PoolOptions& o, int dims) {
    const bool nhd = o.order == KVOrder::NHD;
    return Storage(reinterpret_cast<T*>(first_row_of(memory.data())), o.num_pages, nhd ? o.page_size : o.num_kv_heads,
                   nhd ? o.num_kv_heads : o.page_size, dims);
  }

  /// Room for 64 steps in which every sequence gets a token and a page, and at least for the changes of one call.
  static std::size_t ring_bytes(const PoolOptions& o, int columns) {
    const std::size_t step  = o.max_sequences * (sizeof(TokenRun) + 2 * sizeof(TableUpdate));
    const std::size_t pages = columns > 0 ? std::size_t(o.num_pages) + columns : 0;  // taken, or shared by a fork
    const std::size_t largest =
        o.max_sequences * (sizeof(TableUpdate) + sizeof(TableClear)) + pages * sizeof(TableUpdate);
    return std::max(std::clamp<std::size_t>(64 * step, std::size_t(1) << 16, std::size_t(1) << 24), largest + 16);
  }

  /// Launches the copies, then the runs, and last the changes of the table.
  void flush(const ExecutionSpace& exec, const RowPair& rows) {
    updates.clear();
    clears.clear();
    const bool paged = block_table.data() != nullptr;
    table.for_changes([&](int slot, int length) { updates.push_back({slot, -1, length}); },
                      [&](int slot, int column, int page) {
                        if (paged) updates.push_back({slot, column, page});
                      },
                      [&](int slot, int column, int count) {
                        if (paged) clears.push_back({slot, column, count});
                      });
    for (std::span<const TokenRun> rest = copies; !rest.empty();) launch_part(copy_label, exec, rest, cache());
    std::span<const TokenRun> rest = runs;
    while (!rest.empty() && rest.size_bytes() + table_bytes() > ring.limit())
      launch_part(write_label, exec, rest, rows);
    launch_last(exec, rest, rows);
  }

  std::size_t table_bytes() const { return updates.size() * sizeof(TableUpdate) + clears.size() * sizeof(TableClear); }

  /// Launches the runs that fit the ring's limit, and removes them from the list.
  void launch_part(const std::string& label, const ExecutionSpace& exec, std::span<const TokenRun>& list,
                   const RowPair& from) {
    const std::size_t n = std::min(list.size(), ring.limit() / sizeof(TokenRun));
    std::byte* const at = ring.take(exec, n * sizeof(TokenRun));
    std::memcpy(at, list.data(), n * sizeof(TokenRun));
    write_rows<T>(label, exec, ListedRuns{reinterpret_cast<const TokenRun*>(at)}, static_cast<int>(n), row_shape(),
                  from, cache());
    wrote = true;
    list  = list.subspan(n);
  }

  /// One launch: these runs, and all updates and clears.
  void launch_last(const ExecutionSpace& exec, std::span<const TokenRun> list, const RowPair& from) {
    if (list.empty() && updates.empty() && clears.empty()) return;
    std::byte* const at = ring.take(exec, list.size_bytes() + table_bytes());
    std::byte* end      = at;
    const auto place    = [&]<class Item>(std::span<const Item> items) {
      if (!items.empty()) std::memcpy(end, items.data(), items.size_bytes());
      const auto* const placed = reinterpret_cast<const Item*>(end);
      end += items.size_bytes();
      return placed;
    };
    const ListedRuns listed{place(list)};
    TableUpdates staged;
    staged.list   = place(std::span<const TableUpdate>(updates));
    staged.clears = place(std::span<const TableClear>(clears));
    staged.count = static_cast<int>(updates.size()), staged.num_clears = static_cast<int>(clears.size());
    staged.seq_lens = seq_lens.data(), staged.block_table = block_table.data();
    staged.columns = static_cast<std::int64_t>(block_table.extent(1));
    write_rows<T>(write_label, exec, listed, static_cast<int>(list.size()), row_shape(), from, cache(), staged);
  }
};

}  // namespace pagoda::detail
