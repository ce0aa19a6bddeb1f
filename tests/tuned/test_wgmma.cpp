// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/tuned/wgmma/grouped/shapes.hpp"
#include "backends/cuda/tuned/wgmma/latent/shapes.hpp"
#include "tests/tuned/cards.hpp"

#include <gtest/gtest.h>

#include <string>

namespace pagoda::tuned::wgmma {
namespace {

const Device& h200 = cards[3].device;

TEST(Wgmma, BlocksFitTheirMultiprocessor) {
  constexpr int reserved = 1024;  // of every block, by the system
  using Latent           = latent::Shared;
  EXPECT_LE(Latent::bytes, h200.shared_per_block);
  EXPECT_EQ(Latent::tiles % run_bytes, 0);  // the swizzle's pattern begins anew
  EXPECT_EQ(Latent::probabilities % run_bytes, 0);
  EXPECT_EQ(Latent::barriers % 8, 0);
  EXPECT_LE(Latent::count, 32);  // a lane sets up each
  for (const int head_dim : {64, 128})
    for (const int groups : {1, 2}) {
      const auto place = grouped::shared(head_dim, groups);
      EXPECT_LE(place.bytes, h200.shared_per_block);
      EXPECT_LE(grouped::blocks(groups) * (place.bytes + reserved), h200.shared_per_sm);
      EXPECT_EQ(place.ring % run_bytes, 0);
      EXPECT_EQ(place.barriers % 8, 0);
      EXPECT_LE(grouped::stages(head_dim, groups), 32);  // a lane sets up each one's barriers
    }
}

TEST(Wgmma, EveryRowIsSomebodys) {
  for (const int rows_of_head : {1, 16, 64, 65, 128}) {
    EXPECT_GE(latent::together(rows_of_head) * rows, rows_of_head);
    EXPECT_GE(grouped::groups(rows_of_head) * rows, rows_of_head);
    EXPECT_GE(part_quads(rows_of_head, 128) * 4, std::int64_t(rows_of_head) * 128);
  }
  for (const Pace& pace : {latent::pace(h200), grouped::pace(64, 1, h200), grouped::pace(128, 2, h200)})
    for (const int together : {1, 2})
      for (const int count : {0, 1, 2, 16, 64, 66, 131, 132, 133, 140, 264, 1000, 100000})
        for (const int tiles : {0, 1, 2, 64, 1024, 100000}) {
          const Shape s        = spread(count, tiles, together, pace, h200);
          const std::string in = std::to_string(count) + " rows of " + std::to_string(tiles) + " tiles";
          EXPECT_EQ(s.teams * together, h200.num_sms * pace.blocks_per_sm) << in;
          EXPECT_GE(s.pieces, 1) << in;
          EXPECT_LE(s.pieces, std::max(tiles, 1)) << in << ": pieces without tiles";
          if (s.pieces > 1) {
            EXPECT_LE(count * s.pieces, s.teams) << in << ": cut rows are not dealt in rounds";
          }
          EXPECT_LE(teams_launched(count, 2, s), s.teams) << in;
          EXPECT_LE(teams_launched(count, 1, s), s.teams) << in;
        }
}

TEST(Wgmma, OneLongRowTakesTheWholeMachine) {
  EXPECT_EQ(spread(1, 1024, 1, latent::pace(h200), h200).pieces, 132);
  EXPECT_EQ(spread(1, 1024, 2, latent::pace(h200), h200).pieces, 66);
  EXPECT_EQ(spread(1, 1024, 1, grouped::pace(128, 1, h200), h200).pieces, 264);
}

TEST(Wgmma, RowsThatFitBadlyAreStreamed) {
  EXPECT_FALSE(spread(132, 64, 1, latent::pace(h200), h200).streams);
  EXPECT_TRUE(spread(140, 64, 1, latent::pace(h200), h200).streams);  // a second round of eight
  EXPECT_FALSE(spread(140, 1, 1, latent::pace(h200), h200).streams);  // too little for it to matter
}

}  // namespace
}  // namespace pagoda::tuned::wgmma
