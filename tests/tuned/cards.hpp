// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/tuning.hpp"

namespace pagoda::tuned {

/// A card that there are kernels for. Multiprocessors and shared memory: CUDA C++ Programming Guide, compute
/// capabilities, and the cards' data sheets, which also say the bandwidth. Latency under load: measured on the H200
/// (24 KB a multiprocessor at 34 bytes a nanosecond), assumed to be the same for the others.
struct Card {
  const char* name;
  Device device;
  int gb_per_s;

  static constexpr int latency_ns = 700;
  /// Little's law: what a multiprocessor must have on its way to keep its share of the memory busy.
  constexpr int needed_bytes() const { return gb_per_s * latency_ns / device.num_sms; }
};

inline constexpr Card cards[] = {{"A100 80 GB", {80, 108, 164 * 1024, 163 * 1024}, 2039},
                                 {"A40", {86, 84, 100 * 1024, 99 * 1024}, 696},
                                 {"H100 SXM", {90, 132, 228 * 1024, 227 * 1024}, 3350},
                                 {"H200", {90, 132, 228 * 1024, 227 * 1024}, 4800}};

/// Bytes of a tile of 16 tokens.
inline constexpr int half128 = 16 * 128 * 2, half64 = 16 * 64 * 2, byte128 = 16 * 128;
inline constexpr int word128 = 16 * 128 * 4, word64 = 16 * 64 * 4;

}  // namespace pagoda::tuned
