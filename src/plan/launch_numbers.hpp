// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/detail/schedule.hpp>

#include "src/base/arithmetic.hpp"
#include "src/plan/split.hpp"
#include "src/plan/team_count.hpp"

#include <algorithm>
#include <cstdint>

namespace pagoda::detail {

/// The numbers of one decode that follow from the schedule and the batch, without the lengths.
struct LaunchNumbers {
  SplitBounds split;    ///< for this number of rows; num_teams is the number to launch
  int grid_splits;      ///< splits of each row of an even batch
  int tiles_per_head;   ///< row tiles of an entry of one query token and one kv head
  int tiles_per_entry;  ///< row tiles of an entry of one query token
};

/// batch: number of entries. query_len: query tokens of each entry; of an average one if they differ.
inline LaunchNumbers launch_numbers(const Schedule& s, int batch, int query_len) {
  const int group = s.shape.group(), head_groups = s.shape.num_kv_heads / s.kernel.heads_per_item;
  LaunchNumbers n{};
  n.tiles_per_head  = ceil_div(group, s.kernel.row_tile);
  n.tiles_per_entry = n.tiles_per_head * head_groups;
  const std::int64_t row_tiles =
      std::int64_t(batch) * head_groups * ceil_div(std::max(query_len, 1) * group, s.kernel.row_tile);
  n.split       = fit_teams_to_rows(row_tiles, s.split);
  n.grid_splits = grid_for(row_tiles, n.split.num_teams * n.split.even_waves);
  if (s.split.deals_tiles && !s.fixed_splits)
    n.split.num_teams = teams_launched(row_tiles * n.grid_splits, n.split.num_teams);
  return n;
}

}  // namespace pagoda::detail
