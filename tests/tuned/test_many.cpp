// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/tuned/many/shapes.hpp"
#include "tests/tuned/cards.hpp"

#include <gtest/gtest.h>

#include <string>

namespace pagoda::tuned::many {
namespace {

const Device& h200 = cards[3].device;

TEST(Many, ABlockFitsItsMultiprocessor) {
  EXPECT_LE(Shared::bytes, h200.shared_per_block);
  EXPECT_EQ(Shared::tiles % run_bytes, 0);  // the swizzle's pattern begins anew
  EXPECT_EQ(Shared::probabilities % run_bytes, 0);
  EXPECT_EQ(Shared::barriers % 8, 0);
  EXPECT_LE(Shared::count, 32);  // a lane sets up each
}

TEST(Many, EveryRowIsSomebodys) {
  for (const int heads : {1, 16, 64, 65, 128}) {
    EXPECT_EQ(together(heads), heads > 64 ? 2 : 1);
    EXPECT_GE(part_rows(heads) * together(heads), heads);
    EXPECT_EQ(part_rows(heads) % 16, 0);
    for (const int count : {0, 1, 2, 16, 64, 66, 131, 132, 133, 140, 264, 1000, 100000})
      for (const int tiles : {0, 1, 2, 64, 1024, 100000}) {
        const Shape s        = spread(count, tiles, together(heads), h200);
        const std::string in = std::to_string(count) + " rows of " + std::to_string(tiles) + " tiles";
        EXPECT_EQ(s.teams * together(heads), h200.num_sms) << in;
        EXPECT_GE(s.pieces, 1) << in;
        EXPECT_LE(s.pieces, std::max(tiles, 1)) << in << ": pieces without tiles";
        if (s.pieces > 1) {
          EXPECT_LE(count * s.pieces, s.teams) << in << ": cut rows are not dealt in rounds";
        }
        EXPECT_LE(teams_launched(count, 2, s), s.teams) << in;
        EXPECT_LE(teams_launched(count, 1, s), s.teams) << in;
      }
  }
}

TEST(Many, OneLongRowTakesTheWholeMachine) {
  EXPECT_EQ(spread(1, 1024, 1, h200).pieces, 132);
  EXPECT_EQ(spread(1, 1024, 2, h200).pieces, 66);
}

TEST(Many, RowsThatFitBadlyAreStreamed) {
  EXPECT_FALSE(spread(132, 64, 1, h200).streams);
  EXPECT_TRUE(spread(140, 64, 1, h200).streams);  // a second round of eight
  EXPECT_FALSE(spread(140, 1, 1, h200).streams);  // too little for it to matter
}

}  // namespace
}  // namespace pagoda::tuned::many
