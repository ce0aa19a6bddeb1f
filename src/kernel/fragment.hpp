// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/types.hpp>

#include "src/kernel/kernel_args.hpp"

#include <Kokkos_Macros.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>

/// What the generic kernel requires of a fragment. A fragment multiplies tiles of queries, keys and values on a
/// machine. Read PortableFragment first.
namespace pagoda::detail {

struct FragmentShape;

/// Base of the fragments for caches of T. A fragment redefines the members in which it differs.
template <class T>
struct FragmentDefaults {
  /// The cache has scales, and scales of blocks of dims: the kernel takes more arguments.
  static constexpr bool scaled    = has_scale_arrays_v<T>;
  static constexpr int block_dims = block_dims_v<T>;
  /// Type of queries that the instance without options takes as they are.
  static constexpr DType query_type = dtype_v<T>;
  /// There is no instance without options: the general instance is always used.
  static constexpr bool general_only = false;
  /// All workers of a team multiply each tile together, so a team has one state. The fragment defines part_rows,
  /// join_block, join_quads, part_quads and RowQuads.
  static constexpr bool shared_tiles = false;
  /// finish(first) returns this many rows at a time, from row `first` on; 0: finish() returns all rows.
  static constexpr int part_rows = 0;
  /// The fragment can multiply a tile of tokens for several kv heads: locate() and select().
  static constexpr bool many_heads = false;
  /// With many_heads: whether all tiles of the item must be processed again, after the last one.
  KOKKOS_FUNCTION static constexpr bool repeats() { return false; }
  /// Values are a prefix of the keys, in the same memory.
  static constexpr bool values_in_keys = false;
  /// The fragment has code for several instruction sets and takes that of KernelArgs::isa.
  static constexpr bool has_isa = false;
  /// The fragment joins the states of a whole row: store_row().
  static constexpr bool joins_rows = false;
  /// Queries can be loaded and page ids requested before the lengths are known; see begin() and forget_queries().
  static constexpr bool starts_speculatively = false;
  /// Number of partial states that are joined at once; 0: the machine's join_block.
  static constexpr int join_block = 0;
  /// The same if a row has many splits; 0: as for few.
  static constexpr int many_joined = 0;
  /// With fixed splits, partial states are discarded after they are joined (Machine::discard).
  static constexpr bool discards_states = false;
  /// Fixed splits of long rows are up to so many times as long (num_splits_of).
  static constexpr int long_split_factor = 1;
  /// Bytes that a fixed split reads at least, so that few teams are between two items.
  static constexpr int fixed_split_bytes = 1 << 19;
  /// Slow on devices whose fp64 arithmetic is a small fraction of their fp32 arithmetic: not chosen there.
  static constexpr bool needs_fast_fp64 = false;
  /// Teams of max_workers on a multiprocessor, for the launch bounds of the kernel; 0: no launch bounds.
  static constexpr int teams_per_sm = 0;
};

/// The members that a plan reads and every fragment defines. Members that run on the device are templates and are
/// checked when a kernel is compiled.
template <class F>
concept Fragment = requires(const FragmentShape& shape) {
  typename F::Acc;                      // sums: float or double
  typename F::template Instance<true>;  // the fragment with options, and without
  typename F::template Instance<false>;
  requires F::rows > 0;         // query rows that share one pass over the keys
  requires F::lane_rows > 0;    // rows that a lane holds scores of
  requires F::tile_tokens > 0;  // tokens that are multiplied together
  requires F::scratch_alignment > 0;
  { F::any_query } -> std::convertible_to<bool>;          // takes queries of any type without options, too
  { F::probability_type } -> std::convertible_to<DType>;  // what probabilities are rounded to
  { F::row_alignment } -> std::convertible_to<int>;       // bytes; 0: rows of any strides, read one element at a time
  { F::max_row_units } -> std::convertible_to<std::int64_t>;
  { F::can_run(shape) } -> std::same_as<bool>;
  { F::scratch_bytes(int(), int(), int(), int()) } -> std::convertible_to<std::size_t>;
  { F::general_only } -> std::convertible_to<bool>;  // and the other defaults
};

}  // namespace pagoda::detail
