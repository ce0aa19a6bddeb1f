// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/tuned/wgmma/grouped/tuning.hpp"
#include "backends/cuda/tuned/wgmma/latent/tuning.hpp"
#include "backends/cuda/tuned/wgmma/passes.hpp"
#include "tests/tuned/cards.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

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

/// A batch of 8 entries of up to `queries` query tokens each, with `group` query heads to a kv head.
Problem of_queries(int group, int queries) {
  Problem p{};
  p.batch = 8, p.num_q_heads = group, p.num_kv_heads = 1, p.num_q_tokens = p.max_q_tokens = queries;
  return p;
}

// Every query token is in one pass, where it sees the tokens that it sees in its sequence.
TEST(Wgmma, PassesCoverAllQueryTokens) {
  for (const int group : {1, 4, 7, 16, 100, 128})
    for (const int all : {1, 2, 31, 32, 33, 64, 65, 128, 300}) {
      const Passes passes = passes_of(of_queries(group, all));
      EXPECT_LE(group * passes.tokens, max_rows);
      EXPECT_EQ(passes.count == 1, group * all <= max_rows || all == 1);
      for (const int len : {1000, all, all - 1, 0}) {
        int query = 0;
        for (int pass = 0; pass < passes.count; ++pass) {
          const int queries = queries_of_pass(pass, passes.tokens, all);
          const int seen    = tokens_of_pass(pass, passes.tokens, all, len, true);
          EXPECT_GT(queries, 0);
          EXPECT_EQ(tokens_of_pass(pass, passes.tokens, all, len, false), len);
          for (int q = 0; q < queries; ++q, ++query)
            EXPECT_EQ(std::max(seen - (queries - 1 - q), 0), std::max(len - (all - 1 - query), 0))
                << group << " heads, query token " << query << " of " << all << ", " << len << " tokens";
        }
        EXPECT_EQ(query, all);
      }
    }
  EXPECT_EQ(tokens_of_pass(1, 32, 20, 1000, true), 0);  // a pass without query tokens reads nothing
  EXPECT_EQ(tokens_of_pass(1, 32, 20, 1000, false), 0);
}

// The blocks of a round take each pass once, whatever the entry, and nearly all blocks have one.
TEST(Wgmma, PassesSideBySide) {
  for (const int blocks : {1, 2, 16, 60, 132, 264})
    for (int count = 1; count <= 80; ++count) {
      const Passes passes = passes_of(of_queries(128, count), blocks);
      ASSERT_EQ(passes.count, count);
      ASSERT_GE(passes.side_by_side, 1);
      ASSERT_LE(passes.side_by_side, std::min(count, blocks));
      const auto divisor = detail::Divisor::of(passes.side_by_side);
      for (const int batch_entry : {0, 1, 6}) {
        std::vector<int> taken(static_cast<std::size_t>(passes.rounds * passes.side_by_side));
        for (int round = 0; round < passes.rounds; ++round)
          for (int y = 0; y < passes.side_by_side; ++y)
            ++taken.at(pass_of_block(round, batch_entry * passes.rounds + round, y, divisor));
        EXPECT_EQ(std::count(taken.begin(), taken.end(), 1), static_cast<std::ptrdiff_t>(taken.size()));
        EXPECT_GE(static_cast<int>(taken.size()), count);
      }
    }
  for (const int count : {2, 3, 4, 5, 6, 7, 8, 11, 16, 31, 32, 33, 64}) {
    const Passes passes = passes_of(of_queries(128, count), 132);
    EXPECT_GT(passes.side_by_side, 1) << count;
    const double used = 132 / passes.side_by_side * passes.side_by_side / 132.0;
    EXPECT_LE(passes.rounds * passes.side_by_side, 1.1 * count * used) << count;
  }
  const int begins[1] = {};
  Problem p           = of_queries(4, 1000);
  p.cu_seqlens_q = begins, p.total_q_tokens = 8 * 500, p.max_seq_len = 4096;
  EXPECT_EQ(passes_of(p, 132).side_by_side, 1);  // few long entries
  p.total_q_tokens = 8 * 501;
  EXPECT_GT(passes_of(p, 132).side_by_side, 1);
}

// Few long entries among many of one query token.
TEST(Wgmma, RaggedBatchesWithFewLongEntriesHaveSmallPasses) {
  const int begins[1] = {};
  Problem p           = of_queries(4, 32);
  EXPECT_EQ(pass_limit(p), max_rows);
  p.cu_seqlens_q = begins, p.total_q_tokens = 8 * 32, p.max_seq_len = 4096;
  EXPECT_EQ(passes_of(p).count, 1);
  p.total_q_tokens = 8 * 16;
  EXPECT_EQ(passes_of(p).count, 2);
  EXPECT_EQ(passes_of(p).tokens, 16);
  EXPECT_EQ(pass_rows(p, pass_limit(p)), tile_rows);
  p.num_q_heads = 100;  // one query token of more than 64 rows
  EXPECT_EQ(passes_of(p).tokens, 1);
  EXPECT_EQ(pass_rows(p, pass_limit(p)), 100);
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
