// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/tuned/kernels.hpp"
#include "tests/tuned/cards.hpp"

#include <cstdio>

/// Says which kernel is to run on which card, in blocks of how many warps, how many of them on a multiprocessor at the
/// same time, and with how much shared memory each: a line of JSON for every choice there is. Needs no GPU.
/// check_resources.py holds it against what the compiler says of the kernels.
namespace {

using namespace pagoda::tuned;

template <Type T>
void say(const Card& card, const char* type, int head_dim) {
  const Device& d      = card.device;
  const int tile_bytes = 16 * head_dim * bytes_of(T);
  for (int group = 1; group <= 8; ++group)
    for (const int warps : {8, 4, 2, 1}) {
      const Block block = block_of(warps, tile_bytes, head_dim, group, d);
      if (block.per_sm == 0) continue;
      std::printf(R"({"card": "%s", "sm": %d, "type": "%s", "head_dim": %d, "group": %d, "warps": %d, "blocks": %d, )"
                  R"("shared": %d, "shared_per_sm": %d, "shared_per_block": %d, "kernel": %lld})"
                  "\n",
                  card.name, d.sm, type, head_dim, group, warps, block.per_sm, block.shared, d.shared_per_sm,
                  d.shared_per_block,
                  reinterpret_cast<long long>(kernel_of<T>(head_dim, group, warps, block.stages, uses_maps(d))));
    }
}

}  // namespace

int main() {
  // Kernels have addresses here, names in the symbol table: this is where the one lies in the other.
  std::printf("{\"main\": %lld}\n", reinterpret_cast<long long>(&main));
  for (const Card& card : cards) {
    for (const int head_dim : {64, 128}) {
      say<Type::fp32>(card, "fp32", head_dim);
      say<Type::fp16>(card, "fp16", head_dim);
      say<Type::bf16>(card, "bf16", head_dim);
    }
    if (!uses_maps(card.device)) continue;  // 8-bit elements need sm_90
    say<Type::fp8_e4m3>(card, "fp8_e4m3", 128);
    say<Type::fp8_e5m2>(card, "fp8_e5m2", 128);
  }
}
