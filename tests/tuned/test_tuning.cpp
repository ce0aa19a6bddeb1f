// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/tuned/tuning_file.hpp"
#include "backends/cuda/tuned/wgmma/grouped/tuning.hpp"
#include "backends/cuda/tuned/wgmma/latent/tuning.hpp"
#include "tests/tuned/cards.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>
#include <string>
#include <utility>

namespace pagoda::tuned {
namespace {

using namespace warp;

// 128 splits of all kv heads remain, and none is longer than four of the shortest ones.
TEST(Tuning, LongSequencesHaveLongerFixedSplits) {
  for (const int shortest : {6, 7, 8})
    for (const int kv_heads : {1, 2, 8, 32, 128})
      for (int tiles = 0; tiles < 20000; tiles += 1 + tiles / 50) {
        const int shift = fixed_split_shift(shortest, tiles, kv_heads);
        EXPECT_GE(shift, shortest);
        EXPECT_LE(shift, shortest + 2);
        const auto splits = [&](int s) { return std::int64_t(tiles) * kv_heads >> s; };
        if (shift > shortest) {
          EXPECT_GE(splits(shift), 128) << tiles << " tiles, " << kv_heads << " kv heads";
        }
        if (shift < shortest + 2) {
          EXPECT_LT(splits(shift + 1), 128) << tiles << " tiles, " << kv_heads << " kv heads";
        }
      }
  EXPECT_EQ(fixed_split_shift(6, 131072 / 16, 8), 8);
  EXPECT_EQ(fixed_split_shift(6, 4096 / 16, 8), 6);
}

TEST(Tuning, BlocksFitTheirMultiprocessor) {
  for (const Card& card : cards)
    for (const auto& [tile, head_dim] : {std::pair{TileBytes(half128), 128},
                                         {half64, 64},
                                         {byte128, 128},
                                         {word128, 128},
                                         {word64, 64},
                                         {tile_bytes(Type::int8, 128), 128},
                                         {tile_bytes(Type::int4, 128), 128},
                                         {tile_bytes(Type::int8, 128, 2), 128},
                                         {tile_bytes(Type::int4, 128, 2), 128}})
      for (int group = 1; group <= 8; ++group)
        for (const int warps : {8, 4, 2, 1}) {
          const Device& d   = card.device;
          const Block block = block_of(warps, tile, head_dim, group, d);
          const int blocks = blocks_resident(warps, tile, head_dim, group, d), bytes = block.shared;
          const std::string in = std::string(card.name) + ", group " + std::to_string(group) + ", " +
                                 std::to_string(warps) + " warps, " + std::to_string(bytes) + " bytes";
          EXPECT_EQ(bytes, shared_layout(tile, head_dim, group, warps, block.stages).bytes) << in;
          EXPECT_EQ(blocks, d.num_sms * block.per_sm) << in;
          EXPECT_LE(blocks / d.num_sms * warps, warps_per_sm) << in;
          if (blocks == 0) {
            EXPECT_GT(bytes, d.shared_per_block) << in;
            EXPECT_NE(warps, 1) << in << ": the kernels take groups up to 8 everywhere";
          } else {
            EXPECT_LE(bytes, d.shared_per_block) << in;
            EXPECT_LE(blocks / d.num_sms * (bytes + 1024), d.shared_per_sm) << in;
          }
        }
}

// Small pages take the kernels without tensor maps on every card.
TEST(Tuning, BlocksForSmallPagesFit) {
  for (const Card& card : cards) {
    const Device d = without_maps(card.device);
    EXPECT_FALSE(uses_maps(d)) << card.name;
    for (const int tile : {byte128, half128, word128})
      for (int group = 1; group <= 8; ++group)
        for (const int batch_heads : {1, 8, 132, 1000}) {
          const LaunchShape s = choose_shape(batch_heads, 64, tile, 128, group, d);
          const Block block   = block_of(s.warps, tile, 128, group, d);
          EXPECT_EQ(block.stages, stages_of(tile, false)) << card.name;
          EXPECT_GE(block.per_sm, 1) << card.name;
          EXPECT_LE(block.shared, d.shared_per_block) << card.name;
        }
  }
}

TEST(Tuning, EnoughIsOnItsWay) {
  for (const Card& card : cards)
    for (const int tile : {half128, word128})
      for (const int group : {1, 4, 8})
        for (const int warps : {4, 2}) {
          const Device& d  = card.device;
          const int blocks = blocks_resident(warps, tile, 128, group, d) / d.num_sms;
          if (blocks == 0) continue;  // such blocks are not launched
          // One stage of each warp is being used.
          const int flying = blocks * warps * (block_of(warps, tile, 128, group, d).stages - 1) * 2 * tile;
          EXPECT_GE(flying, card.needed_bytes()) << card.name << ", group " << group << ", " << warps << " warps";
        }
}

TEST(Tuning, RowsStayWholeWhereTheyFillTheMachine) {
  const Device& h100 = cards[3].device;
  struct {
    int rows, warps;
  } expected[] = {{128, 8}, {256, 4}, {512, 2}, {1024, 1}};
  for (const auto& e : expected) {
    const LaunchShape s = choose_shape(e.rows, 512, half128, 128, 4, h100);
    EXPECT_EQ(s.warps, e.warps) << e.rows;
    EXPECT_EQ(s.num_splits, 1) << e.rows;
    EXPECT_FALSE(s.stream_k) << e.rows;
    EXPECT_EQ(blocks_to_launch(e.rows, 8, s), e.rows) << "idle blocks";
  }
}

TEST(Tuning, FewRowsAreCut) {
  const Device& h100 = cards[3].device;
  for (const int rows : {1, 2, 8, 16, 64}) {
    const LaunchShape s = choose_shape(rows, 4096, half128, 128, 8, h100);
    EXPECT_GT(rows * s.num_splits, 0.8 * s.blocks) << rows;
    EXPECT_LE(rows * s.num_splits, s.blocks) << rows;
  }
  // But not into splits of less than two tiles.
  EXPECT_LE(choose_shape(8, 4, half128, 128, 8, h100).num_splits, 2);
}

TEST(Tuning, RowsThatFitBadlyAreStreamed) {
  const Device& h100 = cards[3].device;
  EXPECT_TRUE(
      choose_shape(1100, 512, half128, 128, 4, h100).stream_k);  // two rounds, of which the second is nearly empty
  EXPECT_FALSE(choose_shape(4096, 512, half128, 128, 4, h100).stream_k);
  EXPECT_FALSE(choose_shape(1100, 1, half128, 128, 4, h100).stream_k);  // too few bytes to matter
  for (int rows = 1; rows < 3000; ++rows)
    EXPECT_LE(choose_shape(rows, 4096, half128, 128, 4, h100).us, 1.03 * read_us(rows, 4096, 2 * half128, h100) + 4)
        << rows;
}

// 512 rows of a group of 8 fit at once with the shorter ring only.
TEST(Tuning, RowsThatAllFitAreNotDealtInRounds) {
  const Device& h200 = cards[3].device;
  for (const int group : {1, 4, 8}) {
    EXPECT_EQ(blocks_resident(2, half128, 128, group, h200), 4 * h200.num_sms) << group;
    const LaunchShape s = choose_shape(512, 64, half128, 128, group, h200);
    EXPECT_EQ(s.warps, 2) << group;
    EXPECT_EQ(blocks_to_launch(512, 64, s), 512) << group;
  }
  EXPECT_LT(block_of(2, half128, 128, 8, h200).stages, block_of(2, half128, 128, 4, h200).stages);
}

TEST(Tuning, OneSequenceMayBeStreamed) {
  const LaunchShape s = choose_shape(140, (700 + 15) / 16, half128, 128, 4, cards[3].device);
  EXPECT_TRUE(s.stream_k);
  EXPECT_EQ(blocks_to_launch(140, 1, s), s.blocks);
}

TEST(Tuning, BatchesWithOneLongSequenceAreExpectedToBeUneven) {
  EXPECT_TRUE(expects_uneven(64, 131072, 131072 + 63 * 512));
  EXPECT_FALSE(expects_uneven(64, 2552, 131072 + 63 * 512)) << "the same tokens, dealt out evenly";
  EXPECT_FALSE(expects_uneven(64, 8192, 64 * 8192));
  EXPECT_FALSE(expects_uneven(64, 8192, 32 * 8192)) << "a small pool says nothing of a batch";
  EXPECT_FALSE(expects_uneven(64, 131072, std::int64_t(64) * 131072)) << "nor do large bounds";
  EXPECT_FALSE(expects_uneven(1, 131072, 131072));
  EXPECT_FALSE(expects_uneven(2, 131072, 131072 + 512));
}

// Smaller problems have fewer splits.
TEST(Tuning, SmallProblemsTakeLargeBlocks) {
  for (const int rows : {2, 8, 16, 24, 32})
    EXPECT_EQ(choose_shape(rows, 32, half128, 128, 4, cards[3].device).warps, 8) << rows;
}

// 256 rows fit an A100 at once in blocks of two warps. With an H200's speed for an A100's the stream seems cheaper.
TEST(Tuning, AnEvenBatchIsNotStreamedOnSlowerCards) {
  for (const Card& card : {cards[0], cards[1]}) {
    const LaunchShape s = choose_shape(32 * 8, 1024 / 16, half128, 128, 4, card.device);
    EXPECT_FALSE(s.stream_k) << card.name;
    EXPECT_EQ(s.num_splits, 1) << card.name;
  }
}

TEST(Tuning, SpeedFollowsTheDevice) {
  const Speed h200;
  EXPECT_EQ(cards[3].device.speed, h200);
  EXPECT_DOUBLE_EQ(cards[2].device.speed.bytes_per_us, 3.126e6);
  EXPECT_NEAR(cards[0].device.speed.bytes_per_us, 0.93 * 2.039e6, 1e3);
  EXPECT_NEAR(cards[1].device.speed.bytes_per_us, 0.93 * 0.696e6, 1e3);
  // Twice the memory, half the clock.
  const Speed a100  = cards[0].device.speed;
  const Speed other = built_in_speed({"a card to come", 80, 108, 1410000 / 2, 2 * 1593000, 5120});
  EXPECT_DOUBLE_EQ(other.bytes_per_us, 2 * a100.bytes_per_us);
  EXPECT_DOUBLE_EQ(other.sm_bytes_per_us, a100.sm_bytes_per_us / 2);
  EXPECT_DOUBLE_EQ(other.merge2_us, 2 * a100.merge2_us);
  EXPECT_DOUBLE_EQ(other.stream_factor, a100.stream_factor);
  // If CUDA reports no clocks, the card with the most similar number of multiprocessors counts.
  EXPECT_NEAR(built_in_speed({"", 80, 54, 0, 0, 0}).bytes_per_us, a100.bytes_per_us / 2, 1e3);
  EXPECT_DOUBLE_EQ(built_in_speed({"", 80, 54, 0, 0, 0}).merge2_us, a100.merge2_us);
}

// With any tuning file a choice may be slow but never wrong.
TEST(Tuning, EveryChoiceIsValidAtAnySpeed) {
  std::mt19937 random(1);
  const auto pick = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int i = 0; i < 20000; ++i) {
    Device d = cards[pick(4)].device;
    for (const TuningKey& key : tuning_keys()) {
      const double between = key.least + std::ldexp(key.most - key.least, -pick(40));
      d.speed.*key.member  = std::array{key.least, between, key.most}[static_cast<std::size_t>(pick(3))];
    }
    const std::int64_t rows = pick(2) ? pick(300) : std::int64_t(1) << pick(28), tiles = std::int64_t(pick(3))
                                                                                         << pick(27);
    const int tile = std::array{half64, half128, word128}[static_cast<std::size_t>(pick(3))], group = 1 + pick(8);
    const int head_dim  = tile == half64 ? 64 : 128;
    const LaunchShape s = warp::choose_shape(rows, tiles, tile, head_dim, group, d);
    ASSERT_TRUE(s.warps == 8 || s.warps == 4 || s.warps == 2 || s.warps == 1);
    ASSERT_EQ(s.blocks, blocks_resident(s.warps, tile, head_dim, group, d));
    ASSERT_GT(s.blocks, 0);
    ASSERT_GE(s.num_splits, 1);
    ASSERT_LE(s.num_splits, std::max<std::int64_t>(tiles / 2, 1));
    if (s.num_splits > 1) {
      ASSERT_LE(rows * s.num_splits, s.blocks);
    }
    ASSERT_LE(blocks_to_launch(rows, 1 + pick(3), s), s.blocks);

    const wgmma::Pace pace =
        pick(2) ? wgmma::latent::pace(Type::bf16, d) : wgmma::grouped::pace(head_dim, 1 + pick(2), d);
    const int per_head  = 1 + pick(2);
    const LaunchShape m = wgmma::choose_shape(rows, tiles, per_head, pace, d);
    ASSERT_EQ(m.blocks, d.num_sms * pace.blocks_per_sm / per_head);
    ASSERT_GE(m.num_splits, 1);
    ASSERT_LE(m.num_splits, std::max<std::int64_t>(tiles, 1));
    if (m.num_splits > 1) {
      ASSERT_LE(rows * m.num_splits, m.blocks);
    }
    ASSERT_LE(blocks_to_launch(rows, 1 + pick(3), m), m.blocks);
  }
}

TEST(Tuning, NothingOverflows) {
  for (const Card& card : cards) {
    const LaunchShape s = choose_shape(std::int64_t(1) << 27, std::int64_t(1) << 27, half128, 128, 8, card.device);
    EXPECT_GT(s.blocks, 0);
    EXPECT_LE(blocks_to_launch(std::int64_t(1) << 27, 1 << 20, s), s.blocks);
    EXPECT_GT(choose_shape(0, 0, half128, 128, 8, card.device).blocks, 0);
  }
}

}  // namespace
}  // namespace pagoda::tuned
