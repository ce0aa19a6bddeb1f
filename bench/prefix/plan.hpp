// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bench/common/harness.hpp"

namespace pagoda::bench {

/// Adds benchmarks of the planner alone, on one core, with tables in the core's caches.
void add_planning(Harness& harness);

}  // namespace pagoda::bench
