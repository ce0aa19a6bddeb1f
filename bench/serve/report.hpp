// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bench/common/machine.hpp"
#include "bench/serve/results.hpp"

#include <ostream>

namespace pagoda::serve {

/// Both pools side by side, for people.
void print_table(std::ostream& out, const Results& results, const bench::Machine& machine);
/// Everything, for machines: each step, and what the figures depend on.
void print_json(std::ostream& out, const Results& results, const bench::Machine& machine);

}  // namespace pagoda::serve
