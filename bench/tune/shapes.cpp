// SPDX-License-Identifier: Apache-2.0
#include "bench/tune/shapes.hpp"

#include "backends/cuda/tuned/warp/tuning.hpp"

#include <cstdio>
#include <vector>

namespace pagoda::tune {

namespace {

const char* name_of(tuned::Type type) {
  switch (type) {
    case tuned::Type::fp16:
      return "fp16";
    case tuned::Type::bf16:
      return "bf16";
    case tuned::Type::fp8_e4m3:
      return "fp8_e4m3";
    case tuned::Type::fp8_e5m2:
      return "fp8_e5m2";
    default:
      return "fp32";
  }
}

std::string text_of(const tuned::LaunchShape& s) {
  return s.stream_k ? "stream" : std::to_string(s.warps) + (s.num_splits > 1 ? "/" + std::to_string(s.num_splits) : "");
}

void print(Device& device, const Batch& b) {
  const tuned::Device& d = device.facts();
  const int tile_bytes = 16 * tuned::row_bytes(b.type, b.head_dim), group = b.num_q_heads / b.num_kv_heads;
  const std::int64_t tiles = (b.longest() + 15) / 16;
  const auto chosen        = tuned::warp::choose_shape(b.rows(), tiles, tile_bytes, b.head_dim, group, d);
  std::printf("%s %d/%d %dx%d%s, read %.1f, chosen %s (%.1f):", name_of(b.type), b.num_q_heads, b.num_kv_heads,
              b.sequences, b.tokens,
              (b.first_tokens ? "+" + std::to_string(b.first_tokens)
                              : std::string() + (b.paged ? " paged" : "") + (b.by_head ? " HND" : ""))
                  .c_str(),
              device.read_us(b.cache_bytes()), text_of(chosen).c_str(), chosen.us);
  const auto one = [&](const tuned::LaunchShape& s) {
    if (s.blocks > 0) std::printf(" %s %.1f (%.1f)", text_of(s).c_str(), device.decode_us(b, s), s.us);
  };
  for (const int warps : {8, 4, 2, 1})
    one(tuned::warp::equal_splits(warps, b.rows(), tiles, tile_bytes, b.head_dim, group, d));
  one(tuned::warp::stream_k(b.rows(), tiles, tile_bytes, b.head_dim, group, d));
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace

void print_shapes(Device& device) {
  std::printf(
      "%s. Microseconds of a decode by launch shape, in brackets what the cost model expects beyond the start.\n"
      "Shapes: warps of a block, \"/\" splits of each row; or one stream.\n",
      device.name().c_str());
  struct Heads {
    int q, kv;
  };
  struct Lengths {
    int sequences, tokens;
  };
  for (const tuned::Type type : {tuned::Type::fp16, tuned::Type::fp8_e4m3, tuned::Type::fp32}) {
    if (tuned::is_quantized(type) && device.facts().sm < 90) continue;
    for (const Heads h : {Heads{32, 8}, {32, 32}, {16, 2}})
      for (const Lengths l : {Lengths{1, 4096},
                              {8, 4096},
                              {8, 16384},
                              {17, 4096},
                              {24, 1024},
                              {32, 1024},
                              {32, 4096},
                              {40, 2048},
                              {50, 1024},
                              {64, 4096},
                              {128, 1024},
                              {256, 256}})
        print(device, {.type         = type,
                       .num_q_heads  = h.q,
                       .num_kv_heads = h.kv,
                       .sequences    = l.sequences,
                       .tokens       = type == tuned::Type::fp32 ? l.tokens / 2 : l.tokens});
  }
  for (const bool paged : {false, true})
    for (const bool by_head : {false, true})
      for (const tuned::Type type : {tuned::Type::fp16, tuned::Type::fp8_e4m3}) {
        if (tuned::is_quantized(type) && device.facts().sm < 90) continue;
        print(device, {.type = type, .sequences = 32, .tokens = 8192, .paged = paged, .by_head = by_head});
        print(device,
              {.type = type, .num_kv_heads = 32, .sequences = 32, .tokens = 4096, .paged = paged, .by_head = by_head});
      }
  print(device, {.sequences = 64, .tokens = 512, .first_tokens = 131072, .paged = true});
}

}  // namespace pagoda::tune
