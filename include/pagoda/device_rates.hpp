// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

/// @file
/// Rates of a machine, from which planners predict times. They decide what is read once and what is read again, and
/// never change a result beyond its rounding. This header needs neither Kokkos nor CUDA.
namespace pagoda {

/// A number of query rows that a kernel multiplies with a tile of keys at once.
struct RowTile {
  int rows;             ///< query rows: query tokens times the query heads of a kv head
  double flops_per_us;  ///< rate of the whole machine with tiles of this many rows
  double item_us = 0;   ///< overhead of a work item with such tiles; 0: DeviceRates::item_us
};

/// Rates of a machine. Bytes are those of keys and values, times are microseconds. The defaults are an H200's
/// (bench/NOTES.md): 4543 GB/s from memory. Further reads take 9000 GB/s, fitted to plain decodes of 13 trees, which
/// reach 7000 to 12000.
struct DeviceRates {
  double memory_bytes_per_us = 4.543e6;  ///< bandwidth of memory
  double cache_bytes_per_us  = 9.0e6;    ///< bandwidth of the last-level cache
  double cache_bytes         = 50e6;     ///< bytes that it keeps; the rest of a longer prefix is read again
  double state_bytes_per_us  = 4.543e6;  ///< bandwidth for partial states
  /// Row tiles of the kernels, rows ascending. A tile that is half full costs as much as a full one.
  std::vector<RowTile> tiles = {{8, 3e8}, {16, 4e8}, {32, 6e8}, {64, 6e8}, {128, 6e8}};
  /// Row tiles of plain decodes, which may run in another kernel than lists. Default: `tiles`.
  std::vector<RowTile> plain_tiles = {};
  int teams                        = 264;  ///< teams that run at the same time
  double item_us                   = 1.0;  ///< overhead of a work item in a team: start, pipeline fill, output
  double list_us                   = 3.0;  ///< extra time of a decode with a list and a merge
  int chain_rows                   = 0;    ///< most query rows of a chain; 0: the kernels carry out no chains
  double chain_entry_us            = 0.5;  ///< overhead, in a team, of each further entry of a chain
  /// Sequences are in chains if they have at most this many tokens of their own, on average, for each query head of a
  /// kv head. Longer ones are read faster by entries that stand alone.
  int chain_tokens = 1 << 20;
  /// A second bound, on the tokens for all query heads of a kv head together, for batches that have a full chain for at
  /// least 9/10 of `teams` (a chain counts once for each kv head). Few teams share a chain then, so longer sequences
  /// are read as fast in chains, without partial states. The larger of the two bounds holds. 0: chain_tokens alone.
  int unsplit_chain_tokens = 0;
};

}  // namespace pagoda
