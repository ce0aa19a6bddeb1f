// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/support/sample.hpp"
#include "tests/support/spaces.hpp"

#include <type_traits>
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

/// Sequences of a batch that has more rows than the space has teams. The tests' hosts have two threads, with four teams
/// each.
template <class Space>
inline constexpr int more_than_teams = std::is_same_v<Space, Host> ? 100 : 900;

}  // namespace pagoda::test
