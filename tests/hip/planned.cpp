// SPDX-License-Identifier: Apache-2.0
#include "backends/hip/tuning.hpp"

#include <cstdio>

/// Prints a line of JSON for each row of the tuning of MfmaFragment: what check_kernels.py compares the kernels with.
int main() {
  for (const auto& t : pagoda::detail::hip::mfma_tunings)
    std::printf(R"({"dim_tile": %d, "row_tiles": %d, "token_blocks": %d, "waves_per_simd": %d, )"
                R"("general_waves_per_simd": %d})"
                "\n",
                t.dim_tile, t.row_tiles, t.token_blocks, t.waves_per_simd, t.general_waves_per_simd);
}
