// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/random/problem.hpp"

#include <string>

namespace pagoda::test::random {

/// What was run.
struct Tally {
  int tuned = 0, generic = 0;  ///< plans of each backend
  int split = 0;               ///< generic plans that split rows in their first decode
};

/// Plans a problem and carries out its decodes on the space, by each backend that takes it. Returns what is wrong, or
/// an empty string where every row is right, each decode repeats bit for bit, and nothing but outputs and workspace is
/// written.
template <class Space>
std::string run(const Problem& problem, Tally& tally);

}  // namespace pagoda::test::random
