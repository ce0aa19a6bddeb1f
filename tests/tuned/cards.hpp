// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/warp/tuning.hpp"

namespace pagoda::tuned {

/// A card with kernels. Multiprocessors and shared memory: CUDA C++ Programming Guide, compute capabilities, and the
/// cards' data sheets, which also say the bandwidth. Latency under load: measured on the H200 (24 KB a multiprocessor
/// at 34 bytes a nanosecond), assumed to be the same for the others.
struct Card {
  const char* name;
  Device device;
  int gb_per_s;

  static constexpr int latency_ns = 700;
  /// Little's law: the bytes that a multiprocessor must have in flight to keep its share of the memory busy.
  constexpr int needed_bytes() const { return gb_per_s * latency_ns / device.num_sms; }
};

/// Clocks as CUDA reports them.
constexpr Device device_of(const DeviceFacts& facts, int shared_per_sm) {
  return {facts.sm, facts.num_sms, shared_per_sm * 1024, (shared_per_sm - 1) * 1024, false, built_in_speed(facts)};
}
inline constexpr Card cards[] = {
    {"A100 80 GB", device_of({"NVIDIA A100-SXM4-80GB", 80, 108, 1410000, 1593000, 5120}, 164), 2039},
    {"A40", device_of({"NVIDIA A40", 86, 84, 1740000, 7251000, 384}, 100), 696},
    {"H100 SXM", device_of({"NVIDIA H100 80GB HBM3", 90, 132, 1980000, 2619000, 5120}, 228), 3350},
    {"H200", device_of({"NVIDIA H200", 90, 132, 1980000, 3201000, 6144}, 228), 4800}};

/// Bytes of a tile of 16 tokens.
inline constexpr int half128 = 16 * 128 * 2, half64 = 16 * 64 * 2, byte128 = 16 * 128;
inline constexpr int word128 = 16 * 128 * 4, word64 = 16 * 64 * 4;

}  // namespace pagoda::tuned
