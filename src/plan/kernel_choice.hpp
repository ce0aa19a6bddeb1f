// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/cache_ref.hpp>
#include <pagoda/detail/schedule.hpp>
#include <pagoda/types.hpp>

#include <cstddef>
#include <cstdint>

/// How a plan chooses the generic kernel: it describes the problem (FragmentShape), and the kernels answer with the
/// fragment that suits it (FragmentChoice).
namespace pagoda::detail {

/// The problem that a fragment can or cannot run.
struct FragmentShape {
  int rows;  ///< query rows of the longest entry that share a kv head
  int head_dim, head_dim_v;
  bool dense_dims;         ///< the dims of each row of keys and values lie side by side
  int row_alignment;       ///< bytes: the largest power of two, at most 256, that divides the address of every row
  bool values_in_keys;     ///< a token's value is the first head_dim_v elements of its key, in the same memory
  int heads_in_turn;       ///< kv heads whose rows of a token lie side by side in memory
  std::int64_t row_units;  ///< to the farthest row of the cache, in units (row_units)

  /// Rows of keys and values are dense, begin on 16 bytes, and have a multiple of 16 elements of type T.
  template <class T>
  bool aligned_vectors() const {
    constexpr int dims = 16 * dims_per_element_v<T>;
    return dense_dims && row_alignment >= 16 && head_dim % dims == 0 && head_dim_v % dims == 0;
  }
};

/// The properties of the machine that a plan needs.
struct MachineFacts {
  std::size_t scratch_limit = 0;  ///< bytes of a team's scratch
  int multiprocessors       = 0;  ///< that the instance may use; 0 on hosts
  int min_split_tokens = 0, max_split_tokens = 0;
  int even_waves = 0, waves = 0, max_waves = 0;  ///< see SplitBounds
  int teams_in_turn = 1;                         ///< resident teams that share a processor
};

/// The fragment for a problem. Fields of KernelChoice that do not follow from the fragment are not set.
struct FragmentChoice {
  KernelChoice kernel{.fragment = -1};  ///< fragment -1: none fits the machine
  int tile_tokens       = 0;            ///< tokens that a worker multiplies together
  int round_tiles       = 1;            ///< tiles that the workers of a team take at a time
  int resident_teams    = 0;            ///< teams that run at the same time
  bool deals_tiles      = false;        ///< splits interleave rounds
  int fixed_split_bytes = 0;            ///< bytes that a fixed split reads at least
  MachineFacts machine{};
};

/// Returns the first fragment in the machine's list that can run the shape, needs the fewest passes over the keys, and
/// fits the device's scratch memory. Throws InvalidArgument if this build has no kernels for the type. Defined with the
/// kernels (src/dispatch/generic.cpp).
template <class ExecutionSpace>
FragmentChoice choose_fragment(const ExecutionSpace& exec, DType kv_type, const FragmentShape& shape);

/// The problem in the terms of fragments.
FragmentShape fragment_shape(const ProblemShape& shape, const Bounds& bounds, const CacheRef& kv);

/// The kernel of a plan: the chosen fragment for this cache and these options. Throws InvalidArgument if none fits.
KernelChoice choose_kernel(const FragmentChoice& choice, const ProblemShape& shape, const Bounds& bounds,
                           const AttentionOptions& options, const CacheRef& kv);

}  // namespace pagoda::detail
