// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/tuned/wgmma/grouped/tuning.hpp"
#include "backends/cuda/tuned/wgmma/latent/tuning.hpp"
#include "tests/tuned/cards.hpp"

#include <gtest/gtest.h>

#include <string>

namespace pagoda::tuned::wgmma {
namespace {

const Device& h200 = cards[3].device;

TEST(Wgmma, BlocksFitTheirMultiprocessor) {
  constexpr int reserved = 1024;  // bytes of every block, reserved by the system
  using Latent           = latent::SharedLayout;
  EXPECT_LE(latent::shared_bytes, h200.shared_per_block);
  EXPECT_EQ(Latent::tiles % run_bytes, 0);  // the swizzle's pattern repeats
  EXPECT_EQ(Latent::probabilities % run_bytes, 0);
  EXPECT_EQ(Latent::barriers % 8, 0);
  EXPECT_LE(latent::Barriers::count, 32);  // a lane sets up each
  for (const int head_dim : {64, 128})
    for (const int groups : {1, 2}) {
      const auto place = grouped::shared_layout(head_dim, groups);
      EXPECT_LE(place.bytes, h200.shared_per_block);
      EXPECT_LE(grouped::blocks_per_sm(groups) * (place.bytes + reserved), h200.shared_per_sm);
      EXPECT_EQ(place.ring % run_bytes, 0);
      EXPECT_EQ(place.barriers % 8, 0);
      EXPECT_LE(grouped::stages(head_dim, groups), 32);  // each lane sets up the barriers of a stage
    }
}

TEST(Wgmma, EveryRowIsSomebodys) {
  for (const int rows_of_head : {1, 16, 64, 65, 128}) {
    EXPECT_GE(latent::blocks_per_head(rows_of_head) * tile_rows, rows_of_head);
    EXPECT_GE(grouped::num_warpgroups(rows_of_head) * tile_rows, rows_of_head);
    EXPECT_GE(partial_quads(rows_of_head, 128) * 4, std::int64_t(rows_of_head) * 128);
  }
  for (const Pace& pace : {latent::pace(Type::bf16, h200), grouped::pace(64, 1, h200), grouped::pace(128, 2, h200)})
    for (const int per_head : {1, 2})
      for (const int count : {0, 1, 2, 16, 64, 66, 131, 132, 133, 140, 264, 1000, 100000})
        for (const int tiles : {0, 1, 2, 64, 1024, 100000}) {
          const LaunchShape s  = choose_shape(count, tiles, per_head, pace, h200);
          const std::string in = std::to_string(count) + " rows of " + std::to_string(tiles) + " tiles";
          EXPECT_EQ(s.blocks * per_head, h200.num_sms * pace.blocks_per_sm) << in;
          EXPECT_GE(s.num_splits, 1) << in;
          EXPECT_LE(s.num_splits, std::max(tiles, 1)) << in << ": splits without tiles";
          if (s.num_splits > 1) {
            EXPECT_LE(count * s.num_splits, s.blocks) << in << ": split rows must not run in rounds";
          }
          EXPECT_LE(blocks_to_launch(count, 2, s), s.blocks) << in;
          EXPECT_LE(blocks_to_launch(count, 1, s), s.blocks) << in;
        }
}

// Both blocks of a cluster have a split of the same batch head, and no block is without a partner.
TEST(Wgmma, PairsAreOfOneBatchHead) {
  for (const int per_head : {1, 2})
    for (const int count : {1, 2, 3, 16, 32, 33, 40, 64, 66, 140})
      for (const int tiles : {1, 2, 64, 1024}) {
        const LaunchShape s = choose_shape(count, tiles, per_head, latent::pace(Type::bf16, h200), h200);
        const auto blocks   = blocks_to_launch(count, 2, s);
        if (!forms_pairs(s, blocks)) continue;
        EXPECT_EQ(s.num_splits % 2, 0);
        EXPECT_EQ(blocks % 2, 0);
        EXPECT_FALSE(s.stream_k);
      }
  const auto pairs = [](int count, int tiles, int per_head) {
    const LaunchShape s = choose_shape(count, tiles, per_head, latent::pace(Type::bf16, h200), h200);
    return forms_pairs(s, blocks_to_launch(count, 2, s));
  };
  EXPECT_TRUE(pairs(64, 64, 1));
  EXPECT_TRUE(pairs(16, 128, 2));
  EXPECT_FALSE(pairs(64, 64, 2));   // whole rows
  EXPECT_FALSE(pairs(40, 64, 1));   // three splits
  EXPECT_FALSE(pairs(140, 64, 1));  // stream-K
}

TEST(Wgmma, OneLongRowTakesTheWholeMachine) {
  EXPECT_EQ(choose_shape(1, 1024, 1, latent::pace(Type::bf16, h200), h200).num_splits, 132);
  EXPECT_EQ(choose_shape(1, 1024, 2, latent::pace(Type::bf16, h200), h200).num_splits, 66);
  EXPECT_EQ(choose_shape(1, 1024, 1, grouped::pace(128, 1, h200), h200).num_splits, 264);
}

TEST(Wgmma, RowsThatFitBadlyAreStreamed) {
  EXPECT_FALSE(choose_shape(132, 64, 1, latent::pace(Type::bf16, h200), h200).stream_k);
  EXPECT_TRUE(choose_shape(140, 64, 1, latent::pace(Type::bf16, h200), h200).stream_k);  // a second round of eight
  EXPECT_FALSE(choose_shape(140, 1, 1, latent::pace(Type::bf16, h200), h200).stream_k);  // too few bytes to matter
}

}  // namespace
}  // namespace pagoda::tuned::wgmma
