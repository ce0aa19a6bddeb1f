// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/tuned/warp/kernels.hpp"
#include "backends/cuda/tuned/warp/list_tuning.hpp"
#include "backends/cuda/tuned/wgmma/grouped/kernels.hpp"
#include "backends/cuda/tuned/wgmma/grouped/list_tuning.hpp"
#include "backends/cuda/tuned/wgmma/grouped/mixed_tuning.hpp"
#include "backends/cuda/tuned/wgmma/grouped/tuning.hpp"
#include "backends/cuda/tuned/wgmma/latent/kernels.hpp"
#include "backends/cuda/tuned/wgmma/latent/tuning.hpp"
#include "tests/tuned/cards.hpp"

#include <cstdio>

/// Prints a line of JSON for every choice of the tuning: card, kernel, warps per block, blocks that must run on a
/// multiprocessor at the same time, and shared memory per block. Needs no GPU. check_resources.py compares it with the
/// compiled kernels.
namespace {

using namespace pagoda::tuned;

/// Which kernels are linked: all of them, or with PAGODA_SOME_TYPES those that archs_of in ci/parts.sh does not leave
/// out.
#if defined(PAGODA_SOME_TYPES)
constexpr bool all_types = false;
#else
constexpr bool all_types = true;
#endif
template <Type T>
constexpr bool is_linked = all_types || (T != Type::bf16 && T != Type::fp8_e5m2);
template <Type T>
constexpr bool has_option_kernels = all_types || T != Type::int4;
template <Type T>
constexpr bool has_ragged_kernels = !is_integer(T) && (all_types || T != Type::fp32);

void say(const Card& card, const char* type, int head_dim, int group, int warps, int blocks, int shared,
         const void* kernel) {
  const Device& d = card.device;
  std::printf(R"({"card": "%s", "sm": %d, "type": "%s", "head_dim": %d, "group": %d, "warps": %d, "blocks": %d, )"
              R"("shared": %d, "shared_per_sm": %d, "shared_per_block": %d, "kernel": %lld})"
              "\n",
              card.name, d.sm, type, head_dim, group, warps, blocks, shared, d.shared_per_sm, d.shared_per_block,
              reinterpret_cast<long long>(kernel));
}

/// d: the card's, or the one without tensor maps, for small pages. heads: kv heads that a warp reads at once.
template <Type T>
void say_warp(const Card& card, const Device& d, const char* type, int head_dim, int heads) {
  const warp::TileBytes tiles = warp::tile_bytes(T, head_dim, heads);
  for (int group = 1; group <= 8 / heads; ++group)
    for (const int warps : {8, 4, 2, 1}) {
      const warp::Block block = warp::block_of(warps, tiles, head_dim, heads * group, d);
      if (block.per_sm == 0) continue;
      const auto say_kernel = [&](const void* kernel) {
        say(card, type, head_dim, heads * group, warps, block.per_sm, block.shared, kernel);
      };
      const bool maps = warp::uses_maps(d);
      say_kernel(warp::kernel_of<T>(head_dim, group, warps, block.stages, maps, heads));
      if constexpr (has_option_kernels<T>)
        say_kernel(warp::option_kernel_of<T>(head_dim, group, warps, block.stages, maps, heads));
      if constexpr (has_ragged_kernels<T>)
        for (const bool options : {false, true})
          say_kernel(warp::ragged_kernel_of<T>(head_dim, group, warps, block.stages, maps, options));
    }
}

template <Type T>
void say_warp(const Card& card, const char* type, int head_dim, int heads) {
  say_warp<T>(card, card.device, type, head_dim, heads);
  if (warp::uses_maps(card.device) && !is_integer(T))
    say_warp<T>(card, warp::without_maps(card.device), type, head_dim, heads);
}

/// Fixed splits, which need sm_90.
template <Type T>
void say_fixed(const Card& card, const char* type, int head_dim) {
  const warp::TileBytes tile = warp::tile_bytes(T, head_dim);
  for (int group = 1; group <= 8; ++group) {
    const warp::Block block = warp::fixed_split_block(tile, head_dim, group, card.device);
    say(card, type, head_dim, group, warp::fixed_split_warps(tile), block.per_sm, block.shared,
        warp::fixed_kernel_of<T>(head_dim, group));
  }
}

/// Lists of few query rows, which need sm_90.
template <Type T>
void say_list(const Card& card, const char* type, int head_dim) {
  const int tile_bytes = 16 * row_bytes(T, head_dim);
  say(card, type, head_dim, warp::max_list_rows, warp::list_warps, 1,
      warp::list_layout(tile_bytes, head_dim, warp::list_stages(tile_bytes), warp::list_warps).bytes,
      warp::list_kernel_of<T>(head_dim));
}

/// Lists of many query rows, if the build has kernels for them.
template <Type T>
void say_wgmma_list([[maybe_unused]] const Card& card, [[maybe_unused]] const char* type,
                    [[maybe_unused]] int head_dim) {
#if defined(PAGODA_HAS_SM90A)
  for (const int warpgroups : {1, 2})
    say(card, type, head_dim, warpgroups * wgmma::tile_rows, wgmma::grouped::list_threads(T, warpgroups) / 32,
        wgmma::grouped::blocks_per_sm(warpgroups), wgmma::grouped::list_layout(T, head_dim, warpgroups).bytes,
        wgmma::grouped::list_kernel_of<T>(head_dim, warpgroups));
  if (const void* const kernel = wgmma::grouped::mixed_list_kernel_of<T>(head_dim))
    say(card, type, head_dim, wgmma::tile_rows, wgmma::grouped::mixed_threads / 32, wgmma::grouped::blocks_per_sm(1),
        wgmma::grouped::mixed_shared_bytes(T, head_dim), kernel);
#endif
}

/// Latent caches, likewise.
template <Type T>
void say_latent([[maybe_unused]] const Card& card, [[maybe_unused]] const char* type) {
#if defined(PAGODA_HAS_SM90A)
  for (const wgmma::Instance instance : wgmma::all_instances)
    for (const int count : {wgmma::tile_rows, wgmma::max_rows})
      for (const bool pairs : {false, true})
        say(card, type, wgmma::latent::head_dim, count, wgmma::latent::threads / 32, wgmma::latent::blocks_per_sm,
            wgmma::latent::shared_bytes,
            wgmma::latent::kernel_of<T>(wgmma::latent::blocks_per_head(count), instance, pairs));
#endif
}

/// Many query rows per KV head, likewise.
template <Type T>
void say_wgmma([[maybe_unused]] const Card& card, [[maybe_unused]] const char* type) {
#if defined(PAGODA_HAS_SM90A)
  for (const wgmma::Instance instance : wgmma::all_instances)
    for (const int count : {wgmma::tile_rows, wgmma::max_rows}) {
      const int warpgroups = wgmma::grouped::num_warpgroups(count);
      for (const int head_dim : {64, 128})
        for (const bool options : {false, true})
          say(card, type, head_dim, count,
              wgmma::grouped::threads(warpgroups, instance == wgmma::Instance::small_pages) / 32,
              wgmma::grouped::blocks_per_sm(warpgroups), wgmma::grouped::shared_layout(head_dim, warpgroups).bytes,
              options ? wgmma::grouped::option_kernel_of<T>(head_dim, warpgroups, instance)
                      : wgmma::grouped::kernel_of<T>(head_dim, warpgroups, instance));
    }
  say_latent<T>(card, type);
#endif
}

/// All kernels of a type. Quantized elements, lists and warpgroups need sm_90.
template <Type T>
void say_type(const Card& card, const char* type) {
  if constexpr (is_linked<T>) {
    const bool has_maps = warp::uses_maps(card.device);
    if (is_quantized(T) && !has_maps) return;
    for (const int head_dim : {64, 128}) {
      if (is_quantized(T) && head_dim == 64) continue;
      for (int heads = 1; heads <= (is_integer(T) ? 2 : 1); ++heads) say_warp<T>(card, type, head_dim, heads);
      if (!has_maps) continue;
      if constexpr (!is_integer(T)) say_fixed<T>(card, type, head_dim);
      if constexpr (T != Type::fp32 && T != Type::int4) {
        say_list<T>(card, type, head_dim);
        say_wgmma_list<T>(card, type, head_dim);
      }
    }
    if constexpr (T == Type::fp16 || T == Type::bf16)
      if (has_maps) say_wgmma<T>(card, type);
  }
}

}  // namespace

int main() {
  // Kernels have addresses here and names in the symbol table; the address of main relates the two.
  std::printf("{\"main\": %lld}\n", reinterpret_cast<long long>(&main));
  for (const Card& card : cards) {
    say_type<Type::fp32>(card, "fp32");
    say_type<Type::fp16>(card, "fp16");
    say_type<Type::bf16>(card, "bf16");
    say_type<Type::fp8_e4m3>(card, "fp8_e4m3");
    say_type<Type::fp8_e5m2>(card, "fp8_e5m2");
    say_type<Type::int8>(card, "int8");
    say_type<Type::int4>(card, "int4");
    if (warp::uses_maps(card.device)) say_latent<Type::fp8_ds_mla>(card, "fp8_ds_mla");
  }
}
