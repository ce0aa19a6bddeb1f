// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/tuned/kernels.hpp"
#include "backends/cuda/tuned/many/grouped/kernels.hpp"
#include "backends/cuda/tuned/many/grouped/shapes.hpp"
#include "backends/cuda/tuned/many/latent/kernels.hpp"
#include "backends/cuda/tuned/many/latent/shapes.hpp"
#include "tests/tuned/cards.hpp"

#include <cstdio>

/// Says which kernel is to run on which card, in blocks of how many warps, how many of them on a multiprocessor at the
/// same time, and with how much shared memory each: a line of JSON for every choice there is. Needs no GPU.
/// check_resources.py holds it against what the compiler says of the kernels.
namespace {

using namespace pagoda::tuned;

void say(const Card& card, const char* type, int head_dim, int group, int warps, int blocks, int shared,
         const void* kernel) {
  const Device& d = card.device;
  std::printf(R"({"card": "%s", "sm": %d, "type": "%s", "head_dim": %d, "group": %d, "warps": %d, "blocks": %d, )"
              R"("shared": %d, "shared_per_sm": %d, "shared_per_block": %d, "kernel": %lld})"
              "\n",
              card.name, d.sm, type, head_dim, group, warps, blocks, shared, d.shared_per_sm, d.shared_per_block,
              reinterpret_cast<long long>(kernel));
}

template <Type T>
void say_few(const Card& card, const char* type, int head_dim) {
  const Device& d      = card.device;
  const int tile_bytes = 16 * head_dim * bytes_of(T);
  for (int group = 1; group <= 8; ++group)
    for (const int warps : {8, 4, 2, 1}) {
      const Block block = block_of(warps, tile_bytes, head_dim, group, d);
      if (block.per_sm == 0) continue;
      say(card, type, head_dim, group, warps, block.per_sm, block.shared,
          kernel_of<T>(head_dim, group, warps, block.stages, uses_maps(d)));
    }
}

/// Many query rows to a kv head, where the build has kernels for them.
template <Type T>
void say_many([[maybe_unused]] const Card& card, [[maybe_unused]] const char* type) {
#if defined(PAGODA_HAS_SM90A)
  for (const int count : {many::rows, many::most_rows}) {
    const int groups = many::grouped::groups(count);
    for (const int head_dim : {64, 128})
      say(card, type, head_dim, count, many::grouped::threads(groups) / 32, many::grouped::blocks(groups),
          many::grouped::shared(head_dim, groups).bytes, many::grouped::kernel_of<T>(head_dim, groups));
    say(card, type, many::latent::head_dim, count, many::latent::threads / 32, many::latent::blocks_per_sm,
        many::latent::Shared::bytes, many::latent::kernel_of<T>(many::latent::together(count)));
  }
#endif
}

}  // namespace

int main() {
  // Kernels have addresses here, names in the symbol table: this is where the one lies in the other.
  std::printf("{\"main\": %lld}\n", reinterpret_cast<long long>(&main));
  for (const Card& card : cards) {
    for (const int head_dim : {64, 128}) {
      say_few<Type::fp32>(card, "fp32", head_dim);
      say_few<Type::fp16>(card, "fp16", head_dim);
      say_few<Type::bf16>(card, "bf16", head_dim);
    }
    if (!uses_maps(card.device)) continue;  // 8-bit elements and warpgroups need sm_90
    say_few<Type::fp8_e4m3>(card, "fp8_e4m3", 128);
    say_few<Type::fp8_e5m2>(card, "fp8_e5m2", 128);
    say_many<Type::fp16>(card, "fp16");
    say_many<Type::bf16>(card, "bf16");
  }
}
