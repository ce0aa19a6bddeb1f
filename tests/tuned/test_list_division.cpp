// SPDX-License-Identifier: Apache-2.0
// How lists of entries are divided among blocks. Needs no GPU.
#include "backends/cuda/tuned/wgmma/grouped/list_tuning.hpp"
#include "tests/tuned/cards.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace pagoda::tuned::wgmma::grouped {
namespace {

/// A block's part of a batch head.
struct Part {
  int block;
  HeadShare share;
};

/// Every block goes through its share as the kernel does. parts[i]: of batch head i.
std::vector<std::vector<Part>> divide(const std::vector<HeadWork>& heads, int max_blocks) {
  std::vector<int> position;
  int total = 0;
  for (const HeadWork& h : heads) position.push_back(total), total += h.units;
  const ListDivision division = ListDivision::of(total, max_blocks);
  std::vector<std::vector<Part>> parts(heads.size());
  for (int block = 0; block < max_blocks; ++block) {
    const int begin = division.begin(block);
    if (begin >= total) continue;
    auto i = static_cast<std::size_t>(std::upper_bound(position.begin(), position.end(), begin) - position.begin()) - 1;
    for (; i < heads.size(); ++i) {
      const HeadShare share = HeadShare::of(heads[i], position[i], division, block);
      if (share.last) break;
      if (share.any) parts[i].push_back({block, share});
    }
  }
  return parts;
}

void expect_right(const std::vector<HeadWork>& heads, int max_blocks, const std::string& what) {
  const auto parts = divide(heads, max_blocks);
  std::vector<int> begun(static_cast<std::size_t>(max_blocks)), left(begun);  // joins by place, see PendingJoin
  for (std::size_t i = 0; i < heads.size(); ++i) {
    const std::string in =
        what + ", batch head " + std::to_string(i) + " of " + std::to_string(heads[i].tiles) + " tiles";
    ASSERT_FALSE(parts[i].empty()) << in;
    int next = 0;
    for (const Part& part : parts[i]) {
      const HeadShare& s = part.share;
      ASSERT_EQ(s.first_tile, next) << in;
      ASSERT_EQ(s.has_first_tile, &part == &parts[i].front()) << in;
      ASSERT_EQ(s.whole, parts[i].size() == 1) << in;
      next = s.end_tile;
      if (s.whole) continue;
      ASSERT_GE(s.end_tile - s.first_tile, min_split_tiles) << in;
      ASSERT_EQ(s.first_block, parts[i].front().block) << in;
      ASSERT_EQ(s.last_block, parts[i].back().block) << in;
      ASSERT_EQ(part.block - s.first_block, &part - parts[i].data()) << in << ": blocks side by side";
      ++(s.has_first_tile ? begun : left)[static_cast<std::size_t>(part.block)];
    }
    ASSERT_EQ(next, heads[i].tiles) << in;
  }
  for (const int count : begun) ASSERT_LE(count, 1) << what;
  for (const int count : left) ASSERT_LE(count, 1) << what;
}

TEST(ListDivision, EveryTileIsSomeBlocksOnce) {
  std::mt19937 random(1);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int turn = 0; turn < 3000; ++turn) {
    std::vector<HeadWork> heads;
    const int longest = 1 << below(14), count = 1 + below(1 << below(11)), rows = 1 << below(8);
    for (int i = 0; i < count; ++i) {
      const HeadWork h = HeadWork::of(below(5) == 0 ? below(70) : below(longest), 1 + below(rows));
      heads.insert(heads.end(), static_cast<std::size_t>(1 + below(4)), h);
    }
    for (const int blocks : {1, 2, 132, 264}) {
      expect_right(heads, blocks, "turn " + std::to_string(turn) + ", " + std::to_string(blocks) + " blocks");
      if (HasFatalFailure()) return;
    }
  }
}

TEST(ListDivision, OneLongEntryTakesAllBlocks) {
  for (const int tiles : {5 * 264, 100000}) {
    const auto parts = divide({HeadWork::of(tiles * tile_tokens, 64)}, 264);
    EXPECT_EQ(parts[0].size(), 264u) << tiles;
  }
  EXPECT_EQ(divide({HeadWork::of(3 * tile_tokens, 1)}, 264)[0].size(), 1u);  // not worth a join
}

// No block has much more than its share, however the batch heads' lengths are mixed.
TEST(ListDivision, SharesAreEven) {
  std::vector<HeadWork> heads;
  for (int i = 0; i < 4000; ++i)
    heads.push_back(HeadWork::of(i % 40 == 0 ? 20000 : 32 + i % 400, i % 40 == 0 ? 64 : 4));
  std::vector<int> units(264);
  int total        = 0;
  const auto parts = divide(heads, 264);
  for (std::size_t i = 0; i < heads.size(); ++i) {
    total += heads[i].units;
    for (const Part& p : parts[i])
      units[static_cast<std::size_t>(p.block)] +=
          std::min(heads[i].units, heads[i].start + p.share.end_tile * tile_units) - p.share.first_tile * tile_units;
  }
  const int longest = *std::max_element(units.begin(), units.end());
  EXPECT_LE(longest, total / 264 + 5 * tile_units);
}

TEST(ListBlocks, FitTheirMultiprocessor) {
  const Device& h200     = cards[3].device;
  constexpr int reserved = 1024;  // bytes of every block, reserved by the system
  for (const int head_dim : {64, 128})
    for (const int groups : {1, 2}) {
      const ListLayout layout = list_layout(head_dim, groups);
      EXPECT_LE(layout.bytes, h200.shared_per_block);
      EXPECT_LE(blocks_per_sm(groups) * (layout.bytes + reserved), h200.shared_per_sm);
      EXPECT_EQ(layout.ring % run_bytes, 0);
      EXPECT_EQ(layout.assignments % 16, 0);
      EXPECT_EQ(layout.barriers % 8, 0);
      // Products read 64 rows from any unit on.
      EXPECT_GE(layout.rows - layout.ring, groups * tile_rows / unit_rows * unit_bytes(head_dim));
    }
}

}  // namespace
}  // namespace pagoda::tuned::wgmma::grouped
