// SPDX-License-Identifier: Apache-2.0
#include "tests/tuned/cards.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

/// backends/cuda/tuned/TUNING.md shows the choices of warp/tuning.hpp on the cards with kernels. This test compares it
/// with the committed page, or writes it (PAGODA_WRITE_TUNING=1).
namespace pagoda::tuned {
namespace {

using namespace warp;

struct Kind {
  const char* name;
  TileBytes tile;
  int head_dim;
  bool quantized;
};
constexpr Kind kinds[] = {{"fp16, bf16, head_dim 128", half128, 128, false},
                          {"fp16, bf16, head_dim 64", half64, 64, false},
                          {"fp8, head_dim 128", byte128, 128, true},
                          {"int8, head_dim 128", tile_bytes(Type::int8, 128), 128, true},
                          {"int8, head_dim 128, two kv heads", tile_bytes(Type::int8, 128, 2), 128, true},
                          {"int4, head_dim 128", tile_bytes(Type::int4, 128), 128, true},
                          {"int4, head_dim 128, two kv heads", tile_bytes(Type::int4, 128, 2), 128, true},
                          {"fp32, head_dim 128", word128, 128, false},
                          {"fp32, head_dim 64", word64, 64, false}};

struct Heads {
  int q, kv;
};
struct Batch {
  int sequences, tokens;
};

void write_blocks(std::ostream& out, const Card& card) {
  const Device& d = card.device;
  out << "| elements | group | warps of a block: blocks of a multiprocessor (stages, KiB of each) "
         "|\n|---|---|---|\n";
  for (const Kind& kind : kinds) {
    if (kind.quantized && !uses_maps(d)) continue;  // quantized elements need sm_90
    for (const int group : {1, 4, 8}) {
      out << "| " << kind.name << " | " << group << " | ";
      for (const int warps : {8, 4, 2, 1}) {
        const Block block = block_of(warps, kind.tile, kind.head_dim, group, d);
        out << (warps == 8 ? "" : ", ") << warps << ": " << block.per_sm << " (" << block.stages << ", "
            << (block.shared + 1023) / 1024 << ")";
      }
      out << " |\n";
    }
  }
}

void write_shapes(std::ostream& out, const Card& card) {
  out << "| heads | batch x tokens | warps of a block | batch heads | splits of each | blocks launched "
         "|\n|---|---|---|---|---|---|\n";
  for (const Heads h : {Heads{16, 2}, {32, 8}, {64, 8}, {32, 32}})
    for (const Batch b : {Batch{1, 512}, {1, 65536}, {8, 8192}, {32, 1024}, {64, 4096}, {128, 1024}, {256, 256}}) {
      const std::int64_t rows = std::int64_t(b.sequences) * h.kv;
      const LaunchShape s     = choose_shape(rows, (b.tokens + 15) / 16, half128, 128, h.q / h.kv, card.device);
      out << "| " << h.q << "/" << h.kv << " | " << b.sequences << " x " << b.tokens << " | " << s.warps << " | "
          << rows << " | "
          << (s.stream_k          ? "one stream"
              : s.num_splits == 1 ? "whole"
                                  : std::to_string(s.num_splits))
          << " | " << blocks_to_launch(rows, b.sequences, s) << " |\n";
    }
}

std::string table() {
  std::ostringstream out;
  out << "# What the kernels are tuned to\n\n"
         "Written by tests/tuned/test_table.cpp from warp/tuning.hpp; not to be edited.\n\n"
         "Little's law: a multiprocessor needs bandwidth times latency on its way. Each warp has a ring of stages, a "
         "tile of\n"
         "16 tokens of keys and one of values each, of which one is being used and the others are on their way.\n";
  for (const Card& card : cards) {
    const Device& d = card.device;
    out << "\n## " << card.name << "\n\n"
        << "sm_" << d.sm << ", " << d.num_sms << " multiprocessors, " << d.shared_per_sm / 1024
        << " KiB of shared memory each, " << card.gb_per_s << " GB/s: " << card.needed_bytes() / 1000.0
        << " KB on their way to each, which two warps have ("
        << 2 * (stages_of(half128, uses_maps(d)) - 1) * 2 * half128 / 1000.0 << " KB). Copies by "
        << (uses_maps(d) ? "tensor maps" : "lanes") << ".\n\n";
    write_blocks(out, card);
    out << "\nHow batches are spread (fp16, head_dim 128):\n\n";
    write_shapes(out, card);
  }
  return out.str();
}

TEST(TuningTable, IsWhatIsCommitted) {
  if (std::getenv("PAGODA_WRITE_TUNING")) std::ofstream(PAGODA_TUNING_TABLE) << table();
  std::ifstream file(PAGODA_TUNING_TABLE);
  std::stringstream committed;
  committed << file.rdbuf();
  EXPECT_EQ(committed.str(), table()) << "run this test with PAGODA_WRITE_TUNING=1 and look at what changes";
}

}  // namespace
}  // namespace pagoda::tuned
