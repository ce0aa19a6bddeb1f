// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bench/common/machine.hpp"
#include "bench/serve/results.hpp"

#include <ostream>

namespace pagoda::serve {

/// Writes a table of both pools, for people.
void print_table(std::ostream& out, const Results& results, const bench::Machine& machine);
/// Writes JSON, for programs: each step, and the context of the figures.
void print_json(std::ostream& out, const Results& results, const bench::Machine& machine);

}  // namespace pagoda::serve
