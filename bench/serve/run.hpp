// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bench/serve/results.hpp"

namespace pagoda::serve {

/// Serves the trace from a contiguous and from a paged pool, one after the other. Throws InvalidArgument for options
/// that are not allowed, TraceError for an unreadable trace.
Results run(const Options& options);

}  // namespace pagoda::serve
