// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/detail/schedule.hpp>
#include <pagoda/device_rates.hpp>

#include <string_view>
#include <vector>

/// Rates of an H200, from which decodes of shared prefixes are planned. Needs no CUDA.
namespace pagoda::detail {

inline bool is_tuned(const Schedule& schedule) { return std::string_view(schedule.backend.name) == "tuned"; }

/// The tile of the generic kernel: every pass multiplies row_tile query rows, so more rows take several passes.
inline std::vector<RowTile> generic_tiles(const KernelChoice& kernel) {
  const int rows    = kernel.row_tile;
  const bool matrix = size_of(kernel.probability_type) == 2;
  if (matrix) return {{rows, rows > 8 ? 4e8 : 3e8}};
  return {{rows, rows > 4 ? 4e7 : rows > 1 ? 3e7 : 1e7}};
}

/// Rates fitted to plain decodes and decodes of lists of 18 trees with four kinds of heads (bench/NOTES.md, "Lists of
/// entries"). plain, lists: the schedules of both kinds of decodes, which may have different backends. Of the
/// hand-tuned kernels, the warpgroup kernels decode lists; plain decodes of up to 8 rows run in the warp kernels.
/// item_us of hand-tuned lists is not part of the fit: it follows from 1024 entries of 32 tokens in the kernel for 64
/// rows.
inline DeviceRates h200_rates(const Schedule& plain, const Schedule& lists) {
  DeviceRates r;
  r.cache_bytes_per_us = 1.2e7;
  r.state_bytes_per_us = 1.5e6;
  r.list_us            = 20;
  r.tiles              = is_tuned(lists) ? std::vector<RowTile>{{64, 5e8}} : generic_tiles(lists.kernel);
  r.plain_tiles = is_tuned(plain) ? std::vector<RowTile>{{8, 2e9}, {64, 6e8}, {128, 6e8}} : generic_tiles(plain.kernel);
  if (is_tuned(lists)) r.item_us = 1.2;
  return r;
}

}  // namespace pagoda::detail
