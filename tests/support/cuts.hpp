// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/support/sample.hpp"

#include <pagoda/plan.hpp>

namespace pagoda::test {

/// Work items and joined rows of a plan for the sample.
struct Cuts {
  int items = 0, merges = 0;
};
Cuts cuts_of(const detail::Schedule& schedule, const Shape& shape);

}  // namespace pagoda::test
