// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/kernel/kernel_args.hpp"
#include "src/kernel/rows.hpp"

#include <cstddef>

namespace pagoda::detail {

/// How a plan's kernel multiplies, and what that means for the plan.
struct FragmentChoice {
  int index = -1;  ///< in the machine's list; -1: none fits
  int rows = 0, tile_tokens = 0, workers = 0;
  int heads_per_item = 1;  ///< kv heads that a tile of tokens is taken through
  int teams          = 0;  ///< that run at the same time
  int row_alignment  = 0;  ///< bytes on which rows must begin; 0: rows of any strides, read element by element
  bool any_query     = false;
  DType query_type{};  ///< of queries that need not be converted
  DType probability_type{};
  std::int64_t max_row_units = 0;      ///< of a cache, see FragmentShape
  bool values_in_keys        = false;  ///< counted on, see FragmentShape
  bool deals_tiles           = false;  ///< splits are dealt out in rounds
  int round_tiles            = 1;      ///< that a team's workers take at a time
};

/// The first fragment of the list that can do the shape, takes as few passes over the keys as any, and fits the
/// device's scratch memory. Instantiated once per element type of the cache.
template <class ExecutionSpace, class T>
FragmentChoice choose_fragment(const ExecutionSpace& exec, const FragmentShape& shape);

/// Launches the decode kernel of the plan's fragment (one of a type without scales takes the args without them): the
/// instance that knows score options and queries of any type
/// (all), or the one that does without.
template <class ExecutionSpace, class T>
void launch_decode(const ExecutionSpace& exec, const PlanState& state, const AllKernelArgs& args, bool all);

/// Launches every kernel of the plan once on no work, so that loading code, host scratch and the like never happen
/// inside a later decode or graph capture, and initializes the plan's own memory.
template <class ExecutionSpace>
void warm_up(const ExecutionSpace& exec, const Plan<ExecutionSpace>& plan);

}  // namespace pagoda::detail
