// SPDX-License-Identifier: Apache-2.0
#include "backends/hip/cards.hpp"

#include <cstdio>

/// Prints a line of JSON for each row of the tuning of MatrixFragment, which check_kernels.py compares the kernels
/// with, and for each card, which it predicts times for.
int main() {
  for (const auto& t : pagoda::detail::hip::matrix_tunings)
    std::printf(R"({"lanes": %d, "bits": %d, "key_dims": %d, "value_dims": %d, "row_tiles": %d, "token_blocks": %d, )"
                R"("waves_per_simd": %d, "general_waves_per_simd": %d, "general_scratch": %d, "scratch": %d})"
                "\n",
                t.lanes, t.bits, t.key_dims, t.value_dims, t.row_tiles, t.token_blocks, t.waves_per_simd,
                t.general_waves_per_simd, t.general_scratch, t.scratch);
  for (const auto& c : pagoda::detail::hip::cards)
    std::printf(R"({"card": "%s", "target": "%s", "simds": %d, "mhz": %d, "bytes_per_us": %.0f, "vector_cycles": %d, )"
                R"("transcendental_cycles": %d, "matrix_cycles": %d})"
                "\n",
                c.name, c.target, c.compute_units * c.simds, c.mhz, c.bytes_per_us, c.vector_cycles,
                c.transcendental_cycles, c.matrix_cycles);
}
