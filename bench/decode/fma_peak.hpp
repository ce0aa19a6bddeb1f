// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace pagoda::bench {

/// fp32 fused multiply-adds a second that all threads of the default host execution space can do together, with the
/// widest vectors this CPU has and all operands in registers. It limits decodes with many query heads for each KV row.
double peak_fmas_per_second();

}  // namespace pagoda::bench
