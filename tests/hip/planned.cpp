// SPDX-License-Identifier: Apache-2.0
#include "backends/hip/tuning.hpp"

#include <cstdio>

/// Prints a line of JSON for each row of the tuning of MatrixFragment: what check_kernels.py compares the kernels with.
int main() {
  for (const auto& t : pagoda::detail::hip::matrix_tunings)
    std::printf(R"({"lanes": %d, "bits": %d, "key_dims": %d, "value_dims": %d, "row_tiles": %d, "token_blocks": %d, )"
                R"("waves_per_simd": %d, "general_waves_per_simd": %d})"
                "\n",
                t.lanes, t.bits, t.key_dims, t.value_dims, t.row_tiles, t.token_blocks, t.waves_per_simd,
                t.general_waves_per_simd);
}
