// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/hip/tuning.hpp"

/// AMD GPUs as data, and the model that the tuning follows. tests/hip compares both with the compiled kernels.
namespace pagoda::detail::hip {

/// Numbers of AMD's data sheets and instruction set manuals; what is not there is marked. MI250X: one of its two dies.
struct Card {
  const char *name, *target;
  int lanes;  ///< of a wave
  int compute_units, simds, mhz;
  double bytes_per_us;  ///< from memory
  int registers;        ///< of a lane, for all waves of a SIMD
  int lds_kb, l1_kb;    ///< of a compute unit
  int cache_mb;         ///< of the last cache before memory
  /// Cycles in which a SIMD issues an instruction of a wave: vector and memory, transcendental, matrix (16 x 16 x 16).
  int vector_cycles, transcendental_cycles, matrix_cycles;
  double latency_us;  ///< of loads from memory; assumed
  int memory_gb;
  double cache_bytes_per_us;  ///< of the last cache before memory, at its peak
  /// Cycles that a SIMD issues for 16 tokens of fp16, 128 dims, with 16 and with 32 query rows, counted in the compiled
  /// kernel (bench/NOTES.md); 0: there is no such kernel.
  int tile16_cycles, tile32_cycles;
};

inline constexpr Card cards[] = {
    {"MI210", "gfx90a", 64, 104, 4, 1700, 1.6e6, 512, 64, 16, 8, 4, 16, 32, 0.8, 64, 6.9e6, 968, 1756},
    {"MI250X", "gfx90a", 64, 110, 4, 1700, 1.6e6, 512, 64, 16, 8, 4, 16, 32, 0.8, 64, 6.9e6, 968, 1756},
    {"MI300X", "gfx942", 64, 304, 4, 2100, 5.3e6, 512, 64, 32, 256, 4, 16, 16, 0.8, 192, 17.2e6, 712, 1244},
    {"MI325X", "gfx942", 64, 304, 4, 2100, 6.0e6, 512, 64, 32, 256, 4, 16, 16, 0.8, 256, 17.2e6, 712, 1244},
    {"RX 7900 XTX", "gfx1100", 32, 96, 2, 2500, 0.96e6, 1536, 64, 32, 96, 1, 4, 32, 0.8, 24, 3.5e6, 731, 0},
};

/// Bytes that the loads of a compute unit must have in flight, so that the memory is busy.
constexpr double bytes_in_flight(const Card& c) { return c.bytes_per_us * c.latency_us / c.compute_units; }

/// Bytes of keys and values of a tile.
constexpr int tile_bytes(const MatrixTuning& t) {
  return 16 * t.token_blocks * (t.key_dims + t.value_dims) * t.bits / 8;
}
/// Bytes that the kernels without options have in flight on a compute unit, at least: half of a tile for each wave.
constexpr double bytes_loaded_at_once(const MatrixTuning& t, const Card& c) {
  return tile_bytes(t) / 2.0 * t.waves_per_simd * c.simds;
}

/// Every kernel has enough loads in flight on every card that it is for.
constexpr bool tunings_hide_latency() {
  for (const MatrixTuning& t : matrix_tunings)
    for (const Card& c : cards)
      if (t.lanes == c.lanes && bytes_loaded_at_once(t, c) < bytes_in_flight(c)) return false;
  return true;
}
static_assert(tunings_hide_latency());

}  // namespace pagoda::detail::hip
