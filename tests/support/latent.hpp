// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/support/sample.hpp"

#include <vector>

namespace pagoda::test {

/// A latent cache (multi-head latent attention): one kv head of 576 dims, of which the first 512 are the value.
inline Shape latent_shape(int heads, const std::vector<int>& lengths) {
  return {.lengths        = lengths,
          .num_q_heads    = heads,
          .num_kv_heads   = 1,
          .head_dim       = 576,
          .head_dim_v     = 512,
          .values_in_keys = true};
}

}  // namespace pagoda::test
