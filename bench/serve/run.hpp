// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bench/serve/results.hpp"

namespace pagoda::serve {

/// Serves the trace from a contiguous and from a paged pool, one after the other. Throws InvalidArgument for options
/// that cannot be, TraceError for a trace that cannot be read.
Results run(const Options& options);

}  // namespace pagoda::serve
