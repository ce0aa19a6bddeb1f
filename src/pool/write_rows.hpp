// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/cache_ref.hpp>
#include <pagoda/kv_write.hpp>
#include <pagoda/types.hpp>

#include "src/kernel/kernel_args.hpp"
#include "src/kernel/pack.hpp"
#include "src/pool/page_table.hpp"

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

/// The kernel of the pools. It copies rows of keys and values, from the caller or from another page, to listed
/// positions, and writes the changed integers of the device tables.
namespace pagoda::detail {

/// Rows (position, head, dim) in pages; a caller's rows are one page of all tokens. Strides in elements.
struct PagedRows {
  void* data             = nullptr;
  DType type             = DType::fp32;
  std::int64_t page_size = 1, page = 0, token = 0, head = 0, dim = 1;

  KOKKOS_FUNCTION std::int64_t offset(std::int64_t position) const {
    return position / page_size * page + position % page_size * token;
  }
};

/// A cache's keys or values, axes (page, token, head, dim).
inline PagedRows cache_rows(const TensorRef& t) {
  return {t.data, t.type, t.extent[1], t.stride[0], t.stride[1], t.stride[2], t.stride[3]};
}

/// A caller's keys or values, axes (token, head, dim).
inline PagedRows caller_rows(const TensorRef& t) {
  return {t.data, t.type, std::numeric_limits<std::int64_t>::max(), 0, t.stride[0], t.stride[1], t.stride[2]};
}

/// Keys and values at the source or the destination of a copy.
struct RowPair {
  PagedRows k, v;
};

/// Throws InvalidArgument if a mapping of rows to positions has no memory. Messages begin with the owner and the call.
inline void check_mapping(const char* owner, const char* call, const SlotMapping& mapping) {
  require(mapping.data || mapping.count == 0, owner, call, ": slot_mapping has a null pointer; allowed: memory for ",
          mapping.count, " positions");
}

/// The rows that a copy moves for each token.
struct RowShape {
  int num_heads = 0, head_dim = 0, head_dim_v = 0;
  std::int64_t positions = 0;  ///< in the destination cache: its pages times page_size
};

/// A changed integer of the device tables.
struct TableUpdate {
  int slot;
  int column;  ///< column of the block table; -1: the sequence's length
  int value;
};

/// Columns of the block table that are set to -1.
struct TableClear {
  int slot, column, count;
};

/// The device tables and their changes.
struct TableUpdates {
  const TableUpdate* list  = nullptr;
  const TableClear* clears = nullptr;
  int count = 0, num_clears = 0;
  int* seq_lens        = nullptr;
  int* block_table     = nullptr;
  std::int64_t columns = 0;  ///< columns of the block table
};

/// Positions from the host's list of runs.
struct ListedRuns {
  const TokenRun* list;
  KOKKOS_FUNCTION TokenRun operator()(int i) const { return list[i]; }
};

/// Positions from a slot mapping: row i goes to slot_mapping[i].
struct MappedRuns {
  const std::int64_t* slot_mapping;
  std::int64_t stride;
  KOKKOS_FUNCTION TokenRun operator()(int i) const { return {i, slot_mapping[i * stride], 1}; }
};

/// Teams: one for each run, then one for each `updates_per_team` updates, then one for each clear. Vector: rows are
/// dense and of one type, and every row starts and ends at a multiple of 16 bytes.
template <class ExecutionSpace, class T, class Runs, bool Vector>
struct WriteRowsKernel {
  using Policy                          = Kokkos::TeamPolicy<ExecutionSpace>;
  using Member                          = typename Policy::member_type;
  static constexpr int elements         = Vector ? 16 / static_cast<int>(sizeof(T)) : 1;
  static constexpr int updates_per_team = 128;

  Runs runs;
  int num_runs;
  RowShape shape;
  RowPair from, to;
  TableUpdates updates;

  KOKKOS_FUNCTION static int update_teams(const TableUpdates& updates) {
    return (updates.count + updates_per_team - 1) / updates_per_team;
  }
  static int teams(int num_runs, const TableUpdates& updates) {
    return num_runs + update_teams(updates) + updates.num_clears;
  }

  KOKKOS_FUNCTION void operator()(const Member& team) const {
    const int i = team.league_rank(), first_clear = num_runs + update_teams(updates);
    if (i < num_runs) {
      copy(team, runs(i));
    } else if (i < first_clear) {
      update(team, (i - num_runs) * updates_per_team);
    } else {
      clear(team, updates.clears[i - first_clear]);
    }
  }

  KOKKOS_FUNCTION void update(const Member& team, int first) const {
    const int count = Kokkos::min(static_cast<int>(updates_per_team), updates.count - first);
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, count), [&](int i) {
      const TableUpdate u = updates.list[first + i];
      if (u.column < 0) {
        updates.seq_lens[u.slot] = u.value;
      } else {
        updates.block_table[u.slot * updates.columns + u.column] = u.value;
      }
    });
  }

  KOKKOS_FUNCTION void clear(const Member& team, const TableClear& c) const {
    int* const row = updates.block_table + c.slot * updates.columns + c.column;
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, c.count), [&](int i) { row[i] = -1; });
  }

  KOKKOS_FUNCTION void copy(const Member& team, const TokenRun& run) const {
    if (run.to < 0) return;
#if defined(PAGODA_DEBUG_BOUNDS)
    if (run.to + run.count > shape.positions) Kokkos::abort("pagoda: slot_mapping holds a position outside the cache");
#endif
    const std::int64_t k_from = from.k.offset(run.from), v_from = from.v.offset(run.from);
    const std::int64_t k_to = to.k.offset(run.to), v_to = to.v.offset(run.to);
    const int rows = run.count * shape.num_heads;
    Kokkos::parallel_for(Kokkos::TeamThreadRange(team, 2 * rows), [&](int i) {
      const int row = i < rows ? i : i - rows, t = row / shape.num_heads, h = row % shape.num_heads;
      if (i < rows) {
        copy_row(team, shape.head_dim, from.k, k_from + t * from.k.token + h * from.k.head, to.k,
                 k_to + t * to.k.token + h * to.k.head);
      } else {
        copy_row(team, shape.head_dim_v, from.v, v_from + t * from.v.token + h * from.v.head, to.v,
                 v_to + t * to.v.token + h * to.v.head);
      }
    });
  }

  KOKKOS_FUNCTION static void copy_row(const Member& team, int dims, const PagedRows& source, std::int64_t source_row,
                                       const PagedRows& target, std::int64_t target_row) {
    T* const out = static_cast<T*>(target.data) + target_row;
    if constexpr (Vector) {
      using Chunk          = Pack<T, elements>;
      const auto* const in = reinterpret_cast<const Chunk*>(static_cast<const T*>(source.data) + source_row);
      Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, dims / elements),
                           [&](int i) { reinterpret_cast<Chunk*>(out)[i] = in[i]; });
    } else {
      Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, dims), [&](int d) {
        const std::int64_t at = source_row + d * source.dim;
        out[d * target.dim]   = source.type == dtype_v<T>    ? static_cast<const T*>(source.data)[at]
                                : source.type == DType::fp64 ? T(static_cast<const double*>(source.data)[at])
                                                             : T(load_as_float(source.data, source.type, at));
      });
    }
  }
};

/// Whether rows can be copied 16 bytes at a time.
template <class T>
bool vector_rows(const PagedRows& rows, int dims, const RowShape& shape) {
  const auto aligned = [](std::int64_t elements) { return elements * static_cast<int>(sizeof(T)) % 16 == 0; };
  return rows.type == dtype_v<T> && reinterpret_cast<std::uintptr_t>(rows.data) % 16 == 0 && rows.dim == 1 &&
         aligned(dims) && aligned(rows.token) && aligned(rows.page) && (shape.num_heads == 1 || aligned(rows.head));
}

template <class ExecutionSpace, class T, class Runs, bool Vector>
void launch_write(const std::string& label, const ExecutionSpace& exec, const Runs& runs, int num_runs,
                  const RowShape& shape, const RowPair& from, const RowPair& to, const TableUpdates& updates) {
  using Kernel    = WriteRowsKernel<ExecutionSpace, T, Runs, Vector>;
  const int teams = Kernel::teams(num_runs, updates);
  if (teams == 0) return;
  // Enough lanes for one row, and enough threads for several rows at a time.
  int lanes = 1, threads = 1;
  if constexpr (!std::is_same_v<typename ExecutionSpace::memory_space, Kokkos::HostSpace>) {
    const int wanted = std::max(shape.head_dim, shape.head_dim_v) / Kernel::elements;
    while (lanes < wanted && lanes < Kernel::Policy::vector_length_max()) lanes *= 2;
    threads = 128 / lanes;
  }
  Kokkos::parallel_for(label,
                       Kokkos::Experimental::require(typename Kernel::Policy(exec, teams, threads, lanes),
                                                     Kokkos::Experimental::WorkItemProperty::HintLightWeight),
                       Kernel{runs, num_runs, shape, from, to, updates});
}

/// Copies the runs and writes the updates, asynchronously on exec. Types may differ: elements are converted.
template <class T, class ExecutionSpace, class Runs>
void write_rows(const std::string& label, const ExecutionSpace& exec, const Runs& runs, int num_runs,
                const RowShape& shape, const RowPair& from, const RowPair& to, const TableUpdates& updates = {}) {
  const auto vectors = [&](const RowPair& rows) {
    return vector_rows<T>(rows.k, shape.head_dim, shape) && vector_rows<T>(rows.v, shape.head_dim_v, shape);
  };
  vectors(from) && vectors(to)
      ? launch_write<ExecutionSpace, T, Runs, true>(label, exec, runs, num_runs, shape, from, to, updates)
      : launch_write<ExecutionSpace, T, Runs, false>(label, exec, runs, num_runs, shape, from, to, updates);
}

/// write_kv of a slot mapping, compiled once per element type.
template <class T, class ExecutionSpace>
void write_mapped(const std::string& label, const ExecutionSpace& exec, const SlotMapping& mapping,
                  const RowShape& shape, const RowPair& from, const RowPair& to);

}  // namespace pagoda::detail
