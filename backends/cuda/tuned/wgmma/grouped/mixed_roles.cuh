// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/common/list_walk.cuh"
#include "backends/cuda/tuned/wgmma/grouped/mixed_args.hpp"
#include "backends/cuda/tuned/wgmma/grouped/mixed_tuning.hpp"

namespace pagoda::tuned::wgmma::grouped {

/// Role 0 has entries of many rows, role 1 those of few.
struct MixedRoles {
  static constexpr int count = 2;
  const MixedArgs& args;

  PAGODA_DEVICE int units_of(const ListArgs& list, const Entry& e, int end) const {
    const int heads      = heads_of(list, e);
    const EntryView view = view_of(list, e, end);
    return takes(args.few, e) ? -heads * work_of<warp::ListWork>(list, view).units
                              : heads * work_of<HeadWork>(list, view).units;
  }
  PAGODA_DEVICE int chain_units_of(const ListArgs& list, const Entry& e, int end) const {
    return heads_of(list, e) * HeadWork::chain_units(view_of(list, e, end).tokens);
  }
};

}  // namespace pagoda::tuned::wgmma::grouped
