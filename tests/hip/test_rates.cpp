// SPDX-License-Identifier: Apache-2.0
#include "backends/hip/rates.hpp"
#include "src/plan/prefix/cost.hpp"
#include "src/plan/prefix/pack.hpp"
#include "tests/prefix/prefix_batch.hpp"

#include <gtest/gtest.h>

#include <string>

/// Rates of AMD GPUs as data: which card a device is, and what they make the planner do.
namespace pagoda::detail::hip {
namespace {

std::string card_of(const char* architecture, int compute_units, double memory_gb) {
  const Card* const card = find_card(architecture, compute_units, memory_gb);
  return card ? card->name : "none";
}

TEST(HipRates, CardsAreFound) {
  EXPECT_EQ(card_of("gfx942:sramecc+:xnack-", 304, 206.1), "MI300X");
  EXPECT_EQ(card_of("gfx942:sramecc+:xnack-", 304, 274.9), "MI325X");
  EXPECT_EQ(card_of("gfx90a:sramecc+:xnack-", 104, 68.7), "MI210");
  EXPECT_EQ(card_of("gfx90a", 110, 68.7), "MI250X");
  EXPECT_EQ(card_of("gfx1100", 96, 25.8), "RX 7900 XTX");
  EXPECT_EQ(card_of("gfx1100", 84, 21.5), "RX 7900 XTX") << "the nearest of the architecture";
  EXPECT_EQ(card_of("gfx1030", 80, 17), "none");
  EXPECT_EQ(card_of("gfx94", 304, 206), "none");
}

TEST(HipRates, FollowTheCard) {
  for (const Card& c : cards)
    for (const bool matrix : {false, true}) {
      const DeviceRates all  = rates_of(c, c.compute_units, 4 * c.compute_units, matrix, 32);
      const DeviceRates half = rates_of(c, c.compute_units / 2, 2 * c.compute_units, matrix, 32);
      EXPECT_NO_THROW(CostModel({32, 8, 128, 128, 512}, all)) << c.name;
      EXPECT_NO_THROW(CostModel({32, 8, 128, 128, 512}, half)) << c.name;
      EXPECT_EQ(all.memory_bytes_per_us, c.bytes_per_us);
      EXPECT_NEAR(half.tiles[0].flops_per_us / all.tiles[0].flops_per_us, 0.5, 1e-9) << c.name;
      EXPECT_EQ(all.tiles.size(), matrix && c.tile32_cycles > 0 ? 2 : 1) << c.name;
      // Not beyond the peaks of the data sheets: 1307 TFLOP/s of fp16 for MI300X, 1.3e9 flops in a microsecond.
      EXPECT_LT(all.tiles.back().flops_per_us, matrix ? 1.3e9 : 1.7e8) << c.name;
    }
}

/// Microseconds of a list relative to the plain decode of sequences that share `shared` tokens.
double packed_over_plain(const Card& c, int sequences, int shared) {
  test::PrefixBatch batch;
  batch.page_size = 16;
  int next        = shared / 16;
  for (int s = 0; s < sequences; ++s) {
    batch.rows.emplace_back();
    for (int page = 0; page < shared / 16; ++page) batch.rows.back().push_back(page);
    for (int page = 0; page < 4; ++page) batch.rows.back().push_back(next++);
    batch.seq_lens.push_back(shared + 64);
  }
  PrefixForest forest;
  if (!forest.build(batch.pages())) return 1;
  PrefixPacking packing;
  packing.choose(batch.pages(), forest,
                 CostModel({32, 8, 128, 128, 512}, rates_of(c, c.compute_units, 4 * c.compute_units, true, 16)));
  return packing.packed_us() / packing.plain_us();
}

TEST(HipRates, LongSharedPromptsArePacked) {
  for (const Card& c : cards) {
    EXPECT_LT(packed_over_plain(c, 256, 8192), 0.6) << c.name;
    EXPECT_GE(packed_over_plain(c, 2, 64), 1) << c.name;
  }
}

}  // namespace
}  // namespace pagoda::detail::hip
