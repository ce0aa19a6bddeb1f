// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string_view>

namespace pagoda::tuned {

/// The speed of a device, for the cost model. It determines the choice of launch shapes and never changes a result
/// beyond its rounding. Bytes are those of keys and values, times are microseconds. The defaults were measured on an
/// H200 (bench/NOTES.md). pagoda-tune measures all of them on a device.
struct Speed {
  double bytes_per_us    = 4.488e6;  ///< read by all multiprocessors together
  double sm_bytes_per_us = 42500;    ///< read by one multiprocessor while about half of them read, in 16 bits
  // Merge of splits, by warps of a block, where 4 query heads share a kv head.
  double merge8_us = 1.5, merge4_us = 2.7, merge2_us = 4.1, merge1_us = 7.5;
  double row8_us       = 0.2;   ///< from one row to the next in a block of 8 warps
  double stream_us     = 3.5;   ///< extra time of a batch divided by stream-K, besides reading
  double stream_factor = 1.03;  ///< reading time in stream-K over that of whole rows
  // The kernels for many query rows to a kv head.
  double wgmma_merge_us  = 3;    ///< merge of splits
  double wgmma_stream_us = 3;    ///< extra time of stream-K, besides the merge of splits
  double latent_tile_us  = 1.5;  ///< a tile of 64 tokens of a latent cache in one block, if memory does not delay it
  double grouped_tile_us = 0.6;  ///< the same for other caches

  friend constexpr bool operator==(const Speed&, const Speed&) = default;
};

/// What CUDA reports about a device. Zero: not reported.
struct DeviceFacts {
  std::string_view name;
  int sm = 0, num_sms = 0;
  int clock_khz = 0, memory_clock_khz = 0, memory_bus_bits = 0;
};

/// Speed of a device that was not measured, or only in part.
constexpr Speed built_in_speed(const DeviceFacts& d) {
  struct Card {
    int sm, num_sms, clock_khz;
    double bytes_per_us;  ///< measured on sm_90, 0.93 of the data sheet's bandwidth on the others
  };
  constexpr Card a100{80, 108, 1410000, 0.93 * 2.039e6}, a40{86, 84, 1740000, 0.93 * 0.696e6};
  constexpr Card h100{90, 132, 1980000, 3.126e6}, h200{90, 132, 1980000, 4.488e6};
  const Card& like = d.name.find("H100 80GB HBM3") != d.name.npos ? h100 : d.sm >= 90 ? h200 : d.sm == 80 ? a100 : a40;
  const bool measured = &like == &h100 || d.name.find("H200") != d.name.npos;
  const Speed h200_speed{};
  Speed s = h200_speed;

  // 0.93 of the theoretical bandwidth is what an H100 and an H200 read. Two transfers in a memory clock.
  const double theoretical = 2e-3 * d.memory_clock_khz * d.memory_bus_bits / 8;
  s.bytes_per_us           = measured          ? like.bytes_per_us
                             : theoretical > 0 ? 0.93 * theoretical
                                               : like.bytes_per_us * d.num_sms / like.num_sms;
  // On-chip work takes the same number of cycles on every device.
  const double clock = d.clock_khz > 0 ? d.clock_khz : like.clock_khz, slower = h200.clock_khz / clock;
  s.sm_bytes_per_us = h200_speed.sm_bytes_per_us / slower;
  using Time        = double Speed::*;
  for (const Time us :
       {&Speed::merge8_us, &Speed::merge4_us, &Speed::merge2_us, &Speed::merge1_us, &Speed::row8_us, &Speed::stream_us,
        &Speed::wgmma_merge_us, &Speed::wgmma_stream_us, &Speed::latent_tile_us, &Speed::grouped_tile_us})
    s.*us *= slower;
  return s;
}

}  // namespace pagoda::tuned
