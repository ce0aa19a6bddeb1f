// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/random/problem.hpp"

#include <string>

namespace pagoda::test::random {

/// Counts of plans.
struct Tally {
  int tuned = 0, generic = 0;  ///< plans of each backend
  int split = 0;               ///< generic plans that split rows in their first decode
};

/// Plans a problem and carries out its decodes on the space, by each backend that supports it. Returns the error, or an
/// empty string if every row is right, each decode repeats bit for bit, and only outputs and workspace are written.
template <class Space>
std::string run(const Problem& problem, Tally& tally);

}  // namespace pagoda::test::random
