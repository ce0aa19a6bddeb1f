// SPDX-License-Identifier: Apache-2.0
// How rows are split: pure functions, called for many batches. The workspace has exactly the size that they give.
#include "src/plan/split.hpp"

#include "src/base/divisor.hpp"
#include "src/kernel/one_lane.hpp"
#include "src/kernel/share.hpp"
#include "src/kernel/visible_tokens.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace pagoda::detail {
namespace {

struct Batch {
  std::vector<int> chunks;  ///< of each row
  SplitBounds bounds;
};

std::vector<Batch> batches() {
  std::mt19937 random(1);
  const auto up_to = [&](int n) { return static_cast<int>(random() % (static_cast<unsigned>(n) + 1)); };
  std::vector<Batch> all;
  for (int i = 0; i < 2000; ++i) {
    Batch b;
    b.bounds       = {.num_teams   = 1 + up_to(500),
                      .even_waves  = 1 + up_to(2),
                      .waves       = 1 + up_to(4),
                      .chunk_shift = 4,
                      .split_shift = i % 2,
                      .max_chunks  = i % 3 == 0 ? 1 + up_to(64) : 1 << 18,
                      .max_cuts    = 1 + up_to(i % 5 == 0 ? 10 : 2000),
                      .max_waves   = up_to(20),
                      .density     = static_cast<float>(up_to(64)) / 1024};
    const int rows = 1 + up_to(i % 2 == 0 ? 8 : 2000), longest = 1 + up_to(i % 7 == 0 ? 3 : 3000);
    const bool even = i % 4 == 0;
    for (int r = 0; r < rows; ++r) b.chunks.push_back(even ? longest : up_to(longest));
    all.push_back(b);
  }
  return all;
}

RowTotals totals(const std::vector<int>& chunks) {
  RowTotals t{};
  for (const int n : chunks) t.chunks += n, t.rows += n > 0, t.longest = std::max(t.longest, n);
  return t;
}

TEST(Split, CutsFitTheWorkspace) {
  for (const Batch& b : batches()) {
    const SplitLimit limit = limit_splits(totals(b.chunks), b.bounds);
    ASSERT_LE(limit.cuts, b.bounds.max_cuts);
    std::int64_t cuts = 0;
    for (const int n : b.chunks) cuts += num_splits_of(n, limit, b.bounds) - 1;
    ASSERT_LE(cuts, limit.cuts) << b.chunks.size() << " rows, " << b.bounds.num_teams << " teams";
  }
}

// Seven splits for eight teams would leave one of two threads without work for an eighth of the time.
TEST(Split, OneRowHasASplitForEachTeam) {
  for (int teams = 1; teams <= 1000; ++teams) {
    const SplitBounds bounds{
        .num_teams = teams, .even_waves = 1, .waves = 2, .chunk_shift = 5, .max_chunks = 1 << 18, .max_cuts = 2000};
    for (const int chunks : {teams, teams + 1, 128 * teams}) {
      const SplitLimit limit = limit_splits(totals({chunks}), bounds);
      ASSERT_EQ(num_splits_of(chunks, limit, bounds), teams) << chunks << " chunks";
    }
  }
}

// A row of a quarter of all tokens: in two rounds, its splits would take half of the time.
TEST(Split, TheMoreTokensUnevenRowsHaveTheMoreRounds) {
  const SplitBounds bounds{.num_teams   = 100,
                           .even_waves  = 1,
                           .waves       = 2,
                           .chunk_shift = 4,
                           .max_chunks  = 1 << 20,
                           .max_cuts    = 5000,
                           .max_waves   = 16,
                           .density     = 1.0f / 128};
  for (const auto& [chunks, cuts] :
       {std::pair(10'000, 200), {25'600, 200}, {64'000, 500}, {204'800, 1600}, {2'000'000, 1600}}) {
    std::vector<int> rows(31, chunks / 40);
    rows.push_back(chunks - 31 * (chunks / 40));
    EXPECT_EQ(limit_splits(totals(rows), bounds).cuts, cuts) << chunks << " chunks";
  }
  SplitBounds small = bounds;
  small.max_cuts    = 300;
  EXPECT_EQ(limit_splits(totals({50'000, 14'000}), small).cuts, 300) << "as many as the workspace has room for";
}

TEST(Split, FixedSplitsOfARowDoNotDependOnTheOthers) {
  const SplitBounds bounds{.num_teams = 8, .chunk_shift = 5, .max_chunks = 32, .max_cuts = 2000};
  for (int chunks = 1; chunks <= 300; ++chunks) {
    const int expected = (chunks + 31) / 32;
    for (const int others : {0, 1, 7}) {
      std::vector<int> rows(static_cast<std::size_t>(others), 5 * chunks);
      rows.push_back(chunks);
      ASSERT_EQ(num_splits_of(chunks, limit_splits(totals(rows), bounds), bounds), expected) << others << " others";
    }
  }
}

// A prompt of 2^20 query tokens over 2^20 tokens has more than 2^31 chunks.
TEST(Split, MoreChunksThanAnIntCounts) {
  const SplitBounds bounds{
      .num_teams = 396, .even_waves = 1, .waves = 2, .chunk_shift = 4, .max_chunks = 1 << 20, .max_cuts = 800};
  const std::vector<int> lengths{1 << 16, 1 << 16, 1};  // chunks
  RowTotals t{};
  constexpr int tiles = 1 << 17;
  for (const int n : lengths) t.chunks += std::int64_t(n) * tiles, t.rows += tiles, t.longest = std::max(t.longest, n);
  ASSERT_GT(t.chunks, std::int64_t(1) << 31);
  const SplitLimit limit = limit_splits(t, bounds);
  ASSERT_GE(limit.cuts, 0);
  std::int64_t cuts = 0;
  for (const int n : lengths) cuts += std::int64_t(num_splits_of(n, limit, bounds) - 1) * tiles;
  EXPECT_LE(cuts, bounds.max_cuts);
}

/// A worker of one lane, which is enough for a Share.
struct OneLaneMachine : OneLane {
  using Member = int;
};

// The same as the kernel counts it, from lengths and query counts in memory.
TEST(Split, SharesOfMoreChunksThanAnIntCounts) {
  const std::vector<int> seq_lens{1 << 20, 1 << 20, 5}, cu_seqlens_q{0, 1 << 17, 1 << 18, (1 << 18) + 1};
  KernelArgs args{};
  args.seq_lens = seq_lens.data(), args.options.cu_seqlens_q = cu_seqlens_q.data();
  args.batch = 3, args.group = Divisor::of(8), args.row_tile = Divisor::of(8);
  args.heads_per_item = 1, args.head_groups = 8;
  args.options.causal = false, args.options.window_left = -1;
  args.split = {
      .num_teams = 396, .even_waves = 1, .waves = 2, .chunk_shift = 4, .max_chunks = 1 << 20, .max_cuts = 800};
#if defined(PAGODA_DEBUG_BOUNDS)
  args.max_seq_len = 1 << 20, args.num_sequences = 3, args.num_query_tokens = (1 << 18) + 1;
#endif
  const int team = 0;
  Share<OneLaneMachine, true, false> share(team, args, nullptr);
  share.count();
  // 2^18 tiles of 2^16 chunks, 8 heads: each row stays whole, and the last item is the last entry's.
  EXPECT_EQ(num_splits_of(1 << 16, share.state().limit, args.split), 1);
  constexpr int items = ((1 << 18) + 1) * 8;
  WorkItem item{};
  ASSERT_TRUE(share.find(items - 1, item));
  EXPECT_EQ(item.batch, 2);
  EXPECT_EQ(item.kv_head, 7);
  EXPECT_FALSE(share.find(items, item));
}

// By definition: a token is visible if the window of some query token holds it, or if it is an initial token. Entries
// that begin behind the start of a sequence see tokens from there on.
TEST(Split, VisibleTokensAreThoseThatAQuerySees) {
  for (const int first : {0, 16, 48})
    for (const int tokens : {0, 1, 3, 40})
      for (const int queries : {0, 1, 3, 5})
        for (const int window : {-1, 0, 7, 100, std::numeric_limits<int>::max()})
          for (const int initial : {0, 4, 20, 1000}) {
            AttentionOptions options;
            options.window_left = window, options.num_initial_tokens = initial;
            const VisibleTokens visible(options, EntryView{0, first, tokens, 0, queries});
            // The window of the first query token begins before those of the others. Windows end behind the last token.
            const std::int64_t earliest = std::int64_t(first) + tokens - queries - window;
            std::vector<int> expected, found;
            for (int t = first; t < first + tokens; ++t)
              if (window < 0 || t >= earliest || t < initial) expected.push_back(t);
            for (int i = 0; i < visible.count; ++i) found.push_back(visible.token(i));
            ASSERT_EQ(found, expected) << tokens << " tokens from " << first << " on, " << queries
                                       << " query tokens, window " << window << ", initial " << initial;
          }
}

TEST(Split, EntriesAreWhatTheArraysSay) {
  const std::vector<int> seq_lens{50, 60, 70}, ids{2, 0}, begins{4, 4, 9};
  KernelArgs args{};
  args.seq_lens = seq_lens.data(), args.batch = 2, args.options.uniform_query_len = 3;
#if defined(PAGODA_DEBUG_BOUNDS)
  args.max_seq_len = 70, args.num_sequences = 3, args.num_query_tokens = 9;
#endif
  const auto expect = [](const EntryView& e, const std::array<int, 5>& right) {
    EXPECT_EQ((std::array{e.sequence, e.first, e.tokens, e.query_begin, e.queries}), right);
  };
  expect(args.entry<false>(1), {1, 0, 60, 1, 1});
  expect(args.entry<true>(1), {1, 0, 60, 3, 3});
  args.sequence_ids = ids.data();
  expect(args.entry<false>(0), {2, 0, 70, 0, 1});
  args.options.cu_seqlens_q = begins.data();
  expect(args.entry<true>(0), {2, 0, 70, 4, 0});
  expect(args.entry<true>(1), {0, 0, 50, 4, 5});
}

// Bounds without waves: the splits of a row do not depend on the other rows of the batch.
TEST(Split, WithoutWavesSplitsFollowFromTheRowAlone) {
  for (Batch b : batches()) {
    b.bounds.even_waves = b.bounds.waves = b.bounds.max_waves = 0;
    b.bounds.max_chunks += 2, b.bounds.max_cuts = 1 << 24;
    const SplitLimit limit = limit_splits(totals(b.chunks), b.bounds);
    for (const int n : b.chunks) {
      const int alone = n > b.bounds.max_chunks ? ceil_div(n, b.bounds.max_chunks) : 1;
      ASSERT_EQ(num_splits_of(n, limit, b.bounds), alone) << n << " chunks, at most " << b.bounds.max_chunks;
    }
  }
}

TEST(Split, FixedSplitsOfLongRowsAreLonger) {
  SplitBounds bounds = batches()[0].bounds;
  bounds.even_waves = bounds.waves = bounds.max_waves = 0;
  bounds.max_chunks = 43, bounds.max_cuts = 1 << 24;
  const auto limit  = [&](int chunks) { return limit_splits(totals({chunks, 7, 5000}), bounds); };
  const auto splits = [&](int chunks) { return num_splits_of<4>(chunks, limit(chunks), bounds); };
  EXPECT_EQ(splits(0), 1);
  EXPECT_EQ(splits(43), 1);
  EXPECT_EQ(splits(44), 2);
  EXPECT_EQ(splits(23 * 86), 46);
  EXPECT_EQ(splits(23 * 86 + 1), 24);
  EXPECT_EQ(splits(47 * 172), 94);
  EXPECT_EQ(splits(47 * 172 + 1), 48);
  EXPECT_EQ(splits(8192), 48);
  EXPECT_EQ(num_splits_of<2>(8192, limit(8192), bounds), 96);
  EXPECT_EQ(num_splits_of<1>(8192, limit(8192), bounds), 191);
}

TEST(Split, SplitsCoverTheRowInOrderAndNoneIsShort) {
  for (const Batch& b : batches()) {
    const SplitLimit limit = limit_splits(totals(b.chunks), b.bounds);
    for (const int n : b.chunks) {
      const int num_splits = num_splits_of(n, limit, b.bounds);
      ASSERT_GE(num_splits, 1);
      int end = 0, shortest = n, longest = 0;
      for (int p = 0; p < num_splits; ++p) {
        const SplitRange range = split_range(n, num_splits, p);
        ASSERT_EQ(range.first, end) << n << " chunks in " << num_splits;
        end += range.count;
        shortest = std::min(shortest, range.count), longest = std::max(longest, range.count);
      }
      ASSERT_EQ(end, n);
      ASSERT_LE(longest - shortest, 1) << n << " chunks in " << num_splits;
      ASSERT_LE(longest, std::max(limit.max_chunks, 1));
      if (num_splits > 1) {
        ASSERT_GE(shortest, n <= limit.max_chunks ? 1 << b.bounds.split_shift : 1);
      }
    }
  }
}

TEST(Split, AGridOfSplitsFillsOneRoundAndNoSplitIsWithoutTokens) {
  const SplitBounds bounds{.round_shift = 2};
  for (int rows = 1; rows < 1000; ++rows) {
    const int grid = grid_for(rows, 396);
    ASSERT_GE(grid, 1);
    ASSERT_LE(rows * grid, std::max(rows, 396));
    for (const int chunks : {0, 1, 3, 4, 5, 17, 100, 5000}) {
      const int num_splits = grid_splits_of(chunks, grid, bounds), rounds = (chunks + 3) / 4;
      ASSERT_GE(num_splits, 1);
      ASSERT_LE(num_splits, grid);
      ASSERT_LE(num_splits, std::max(rounds, 1)) << "split n begins with round n";
      if (num_splits < grid) {
        ASSERT_EQ(num_splits, std::max(rounds, 1)) << "of one round each";
      }
    }
  }
}

/// 132 multiprocessors of three teams.
const SplitBounds bounds{.num_teams   = 396,
                         .even_waves  = 1,
                         .waves       = 2,
                         .chunk_shift = 6,
                         .split_shift = 0,
                         .max_chunks  = 1 << 18,
                         .max_cuts    = 792};

TEST(Split, FewEvenRowsFillOneRound) {
  for (const int rows : {1, 2, 8, 33, 128}) {
    const SplitLimit limit = limit_splits(totals(std::vector<int>(rows, 2048)), bounds);
    const int num_splits   = rows * num_splits_of(2048, limit, bounds);
    EXPECT_LE(num_splits, 396) << rows;
    EXPECT_GT(num_splits, 396 - rows - 60) << rows;  // whole splits for each row, each of whole chunks
  }
}

TEST(Split, RowsThatOutnumberTeamsOfAllWorkersRunAtOnceInSmallerOnes) {
  SplitBounds dealt = bounds;
  dealt.deals_tiles = true, dealt.round_shift = 2;
  for (int rows = 1; rows < 5000; ++rows) {
    const SplitBounds b = fit_teams_to_rows(rows, dealt);
    const int workers   = 4 >> (2 - b.round_shift);
    ASSERT_LE(b.num_teams * workers, 4 * 396) << rows;
    if (rows <= 396 || rows > 8 * 396) {
      ASSERT_EQ(workers, 4) << rows;
    } else if (rows <= 4 * 396) {
      ASSERT_LE(rows, b.num_teams) << rows;
    } else if (workers < 4) {
      ASSERT_LE(rows, 2 * b.num_teams) << rows;
    }
  }
  EXPECT_EQ(fit_teams_to_rows(512, dealt).num_teams, 528);
  EXPECT_EQ(fit_teams_to_rows(1024, dealt).num_teams, 1056);
  EXPECT_EQ(fit_teams_to_rows(2048, dealt).num_teams, 1056);
  EXPECT_EQ(fit_teams_to_rows(1600, dealt).round_shift, dealt.round_shift);
  EXPECT_EQ(fit_teams_to_rows(1024, bounds).round_shift, bounds.round_shift);
}

TEST(Split, ABatchOfOneRowIsDividedAmongItsOwnNumberOfTeams) {
  SplitBounds b = bounds;
  b.row_teams   = 99;
  EXPECT_EQ(fit_teams_to_rows(1, b).num_teams, 99);
  EXPECT_EQ(fit_teams_to_rows(2, b).num_teams, 396);
  b.num_teams = 3;  // the plan's bounds have no room for more
  EXPECT_EQ(fit_teams_to_rows(1, b).num_teams, 3);
  b.num_teams  = 396;
  b.even_waves = b.waves = b.max_waves = 0;  // fixed splits
  EXPECT_EQ(fit_teams_to_rows(1, b).num_teams, 396);
}

TEST(Split, ManyEvenRowsStayWholeAndUnevenOnesDoNot) {
  std::vector<int> rows(512, 128);
  EXPECT_EQ(num_splits_of(128, limit_splits(totals(rows), bounds), bounds), 1);
  rows[7] = 100000;
  EXPECT_GT(num_splits_of(100000, limit_splits(totals(rows), bounds), bounds), 100);
}

TEST(Split, QuotientsAreExact) {
  std::mt19937 random(2);
  for (int i = 0; i < 100000; ++i) {
    const int a = static_cast<int>(random() >> 1), b = 1 + static_cast<int>(random() % 100000);
    ASSERT_EQ(quotient(a, b), a / b);
    ASSERT_EQ(Divisor::of(b).divide(a), a / b) << a << " / " << b;
  }
  for (const int d : {1, 2, 3, 7, 16, 641, 65536, 2147483647})
    for (const int n : {0, 1, d - 1, d, 2147483646, 2147483647})
      ASSERT_EQ(Divisor::of(d).divide(n), n / d) << n << " / " << d;
}

}  // namespace
}  // namespace pagoda::detail
