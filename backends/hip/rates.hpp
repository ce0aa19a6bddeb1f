// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/hip/cards.hpp"

#include <pagoda/device_rates.hpp>

#include <algorithm>
#include <cmath>
#include <string_view>

/// Rates of AMD GPUs, from which decodes of shared prefixes are planned. They follow from data sheets and from the
/// machine code of the kernels: nothing of it was measured. pagoda-tune measures a card. Needs no HIP.
namespace pagoda::detail::hip {

/// The card with this architecture ("gfx942:sramecc+:xnack-") whose memory, then whose number of compute units, is
/// nearest. Null if no card has the architecture.
inline const Card* find_card(std::string_view architecture, int compute_units, double memory_gb) {
  const std::string_view target = architecture.substr(0, architecture.find(':'));
  const Card* found             = nullptr;
  const auto distance           = [&](const Card& c) {
    return 1e3 * std::abs(c.memory_gb - memory_gb) + std::abs(c.compute_units - compute_units);
  };
  for (const Card& c : cards)
    if (target == c.target && (!found || distance(c) < distance(*found))) found = &c;
  return found;
}

/// Rates of decodes on `compute_units` of a card. teams: that are resident at the same time. matrix: the kernel
/// multiplies with matrix instructions, in tiles of up to row_tile query rows.
inline DeviceRates rates_of(const Card& card, int compute_units, int teams, bool matrix, int row_tile) {
  const double part          = double(compute_units) / card.compute_units;
  const double cycles_per_us = double(compute_units) * card.simds * card.mhz;
  DeviceRates r;
  r.memory_bytes_per_us = card.bytes_per_us;
  r.cache_bytes_per_us  = std::max(card.cache_bytes_per_us * part, r.memory_bytes_per_us);
  r.cache_bytes         = card.cache_mb * 1e6;
  r.state_bytes_per_us  = r.memory_bytes_per_us / 3;  // as on an H200
  r.teams               = teams;
  r.item_us             = 4 * card.latency_us;  // length, page and queries before the first tile, and the last tile
  r.list_us             = 20;                   // as on an H200
  r.tiles.clear();
  if (matrix) {
    const auto flops = [](int rows) { return 4.0 * 128 * rows * 16; };
    r.tiles.push_back({16, flops(16) / card.tile16_cycles * cycles_per_us});
    if (row_tile >= 32 && card.tile32_cycles > 0)
      r.tiles.push_back({32, flops(32) / card.tile32_cycles * cycles_per_us});
  } else {
    // Half of the rate of multiply-adds: conversions, sums over lanes and addresses take the other half.
    r.tiles.push_back({row_tile, 2.0 * card.lanes / card.vector_cycles * cycles_per_us / 2});
  }
  return r;
}

}  // namespace pagoda::detail::hip
