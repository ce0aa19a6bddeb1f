// SPDX-License-Identifier: Apache-2.0
// How lists of entries are divided among blocks, or warps. Needs no GPU.
#include "backends/cuda/tuned/warp/list_tuning.hpp"
#include "backends/cuda/tuned/wgmma/grouped/list_tuning.hpp"
#include "backends/cuda/tuned/wgmma/grouped/mixed_tuning.hpp"
#include "tests/tuned/cards.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

namespace pagoda::tuned {
namespace {

/// The two kinds of kernels: prices of work, least units of a share, and most owners on an H200.
struct Wgmma {
  using Work                     = wgmma::grouped::HeadWork;
  static constexpr int min_units = wgmma::grouped::min_block_units, owners = 264;
};
struct Warp {
  using Work                     = warp::ListWork;
  static constexpr int min_units = warp::min_share_units, owners = 132 * warp::list_warps;
};

template <class Kernel>
class ListDivisionOf : public ::testing::Test {
 protected:
  using Work = typename Kernel::Work;

  /// An owner's part of a batch head.
  struct Part {
    int owner;
    HeadShare share;
  };

  /// The kernels for few rows have late shares.
  static auto division_of(const std::vector<Work>& heads, int total, int max_owners) {
    if constexpr (Work::late) {
      int largest = 0;
      for (const Work& h : heads) largest = std::max(largest, h.units);
      return LateDivision::of(total, largest, max_owners, Kernel::min_units);
    } else {
      return WorkDivision::of(total, max_owners, Kernel::min_units);
    }
  }

  /// Every owner goes through its share as the kernel does. parts[i]: of batch head i.
  static std::vector<std::vector<Part>> divide(const std::vector<Work>& heads, int max_owners) {
    std::vector<int> position;
    int total = 0;
    for (const Work& h : heads) position.push_back(total), total += h.units;
    const auto division = division_of(heads, total, max_owners);
    std::vector<std::vector<Part>> parts(heads.size());
    int shares           = max_owners;
    const auto begins_at = [&](int share) {
      if constexpr (Work::late)
        return division.begin_of(share);
      else
        return division.begin(share);
    };
    if constexpr (Work::late) shares += division.late_count;
    for (int owner = 0; owner < shares; ++owner) {
      const int begin = begins_at(owner);
      if (begin >= total) continue;
      auto i =
          static_cast<std::size_t>(std::upper_bound(position.begin(), position.end(), begin) - position.begin()) - 1;
      for (; i < heads.size(); ++i) {
        const HeadShare share = HeadShare::of(heads[i], position[i], division, owner);
        if (share.last) break;
        if (share.any) parts[i].push_back({owner, share});
      }
    }
    return parts;
  }

  static void expect_right(const std::vector<Work>& heads, int max_owners, const std::string& what) {
    const auto parts = divide(heads, max_owners);
    std::vector<int> begun(static_cast<std::size_t>(max_owners)), left(begun);  // joins by place, see PendingJoin
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
        ASSERT_GE(s.end_tile - s.first_tile, Work::min_split_tiles) << in;
        ASSERT_EQ(s.first_owner, parts[i].front().owner) << in;
        ASSERT_EQ(s.last_owner, parts[i].back().owner) << in;
        ASSERT_EQ(part.owner - s.first_owner, &part - parts[i].data()) << in << ": owners side by side";
        ++(s.has_first_tile ? begun : left)[static_cast<std::size_t>(part.owner)];
      }
      ASSERT_EQ(next, heads[i].tiles) << in;
    }
    for (const int count : begun) ASSERT_LE(count, 1) << what;
    for (const int count : left) ASSERT_LE(count, 1) << what;
  }
};
using Kernels = ::testing::Types<Wgmma, Warp>;
TYPED_TEST_SUITE(ListDivisionOf, Kernels, );

TYPED_TEST(ListDivisionOf, EveryTileIsSomeOwnersOnce) {
  using Work = typename TypeParam::Work;
  std::mt19937 random(1);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int turn = 0; turn < 2000; ++turn) {
    std::vector<Work> heads;
    const int longest = 1 << below(14), count = 1 + below(1 << below(11)), rows = 1 << below(8);
    for (int i = 0; i < count; ++i) {
      Work h = Work::of(below(5) == 0 ? below(70) : below(longest), 1 + below(rows));
      if (std::is_same_v<TypeParam, Wgmma> && below(4) == 0) {  // a chain
        int halves = 0, units = 0;
        for (int entry = 1 << below(8); entry > 0; --entry) {
          const int tokens = below(3) == 0 ? below(longest) : below(70);
          halves += Work::chain_halves(tokens), units += Work::chain_units(tokens);
        }
        h = Work::of_chain(halves, units, 1 + below(rows));
      }
      heads.insert(heads.end(), static_cast<std::size_t>(1 + below(4)), h);
    }
    for (const int owners : {1, 2, 132, TypeParam::owners}) {
      this->expect_right(heads, owners, "turn " + std::to_string(turn) + ", " + std::to_string(owners) + " owners");
      if (this->HasFatalFailure()) return;
    }
  }
}

TYPED_TEST(ListDivisionOf, OneLongEntryTakesAllOwners) {
  using Work           = typename TypeParam::Work;
  constexpr int owners = TypeParam::owners;
  for (const int tiles : {2 * Work::min_split_tiles * owners, 400000}) {
    const auto parts = this->divide({Work::of(tiles * Work::tile_tokens, 8)}, owners);
    EXPECT_EQ(parts[0].size(), static_cast<std::size_t>(owners)) << tiles;
  }
  const int short_tiles = 2 * Work::min_split_tiles - 1;  // not worth a join
  EXPECT_EQ(this->divide({Work::of(short_tiles * Work::tile_tokens, 1)}, owners)[0].size(), 1u);
}

// Batch heads of one size are carried out whole, or in about as many parts each.
TYPED_TEST(ListDivisionOf, BatchHeadsOfOneSizeAreDividedAlike) {
  using Work           = typename TypeParam::Work;
  constexpr int owners = TypeParam::owners;
  const Work head      = Work::of(20 * owners * Work::tile_tokens, 8);
  int fewer            = 0;  // counts with fewer owners
  for (int count = 1; count <= 5 * owners; ++count) {
    const int even = even_owners(count, 1, count * head.units, head.units, owners);
    ASSERT_LE(even, owners) << count;
    ASSERT_GE(16 * even, 15 * owners) << count;
    if (even == owners) continue;
    ++fewer;
    // Shares of parts differ by a unit, which moves some ends behind the next batch head's beginning.
    const std::size_t parts = std::max(even / count, 1), most = count < even ? parts + 1 : 1;
    for (const auto& of_head : this->divide(std::vector<Work>(static_cast<std::size_t>(count), head), even))
      ASSERT_TRUE(of_head.size() == parts || of_head.size() == most) << count << " batch heads, " << even << " owners";
  }
  EXPECT_GT(fewer, 40);
}

TEST(ListDivision, EvenOwners) {
  const auto of = [](int entries, int heads) { return even_owners(entries, heads, 100 * entries, 100, 264); };
  EXPECT_EQ(of(16, 32), 256);  // two batch heads each
  EXPECT_EQ(of(8, 32), 256);   // one
  EXPECT_EQ(of(4, 32), 256);   // two parts of each
  EXPECT_EQ(of(1, 8), 264);    // 33 parts
  EXPECT_EQ(of(264, 1), 264);
  EXPECT_EQ(of(250, 3), 250);
  EXPECT_EQ(of(12, 32), 264) << "two batch heads each would leave 72 owners without work";
  EXPECT_EQ(of(5, 32), 264) << "one part of each would leave 104";
  EXPECT_EQ(of(40, 32), 264) << "five batch heads each";
  EXPECT_EQ(of(521, 1), 264) << "one owner would have one batch head";
  EXPECT_EQ(of(0, 32), 264);
  EXPECT_EQ(even_owners(16, 32, 1600, 125, 264), 256);
  EXPECT_EQ(even_owners(16, 32, 1600, 126, 264), 264) << "an entry is larger than the others";
}

// No owner has much more than its share, however the batch heads' lengths are mixed.
TYPED_TEST(ListDivisionOf, SharesAreEven) {
  using Work           = typename TypeParam::Work;
  constexpr int owners = TypeParam::owners;
  std::vector<Work> heads;
  for (int i = 0; i < 8000; ++i) heads.push_back(Work::of(i % 40 == 0 ? 20000 : 32 + i % 400, i % 40 == 0 ? 64 : 4));
  std::vector<int> units(static_cast<std::size_t>(owners));
  int total        = 0;
  const auto parts = this->divide(heads, owners);
  for (std::size_t i = 0; i < heads.size(); ++i) {
    total += heads[i].units;
    for (const auto& p : parts[i])
      units[static_cast<std::size_t>(p.owner)] +=
          std::min(heads[i].units, heads[i].start + p.share.end_tile * Work::tile_units) -
          p.share.first_tile * Work::tile_units;
  }
  const int longest = *std::max_element(units.begin(), units.end());
  // A batch head that is not worth a split goes to one owner.
  EXPECT_LE(longest, total / owners + Work::of((2 * Work::min_split_tiles + 1) * Work::tile_tokens, 4).units);
}

TEST(ListBlocks, RolesHaveBlocksByTheirUnits) {
  using wgmma::grouped::blocks_of_many;
  constexpr int blocks = 264;
  for (const int step : {1, 8}) {
    EXPECT_EQ(blocks_of_many(blocks, step, 5, 0), blocks);
    EXPECT_EQ(blocks_of_many(blocks, step, 0, 5), 0);
    EXPECT_EQ(blocks_of_many(blocks, step, 0, 0), blocks);
    // Each role with work has a block for each of the heads that are read at once.
    EXPECT_EQ(blocks_of_many(blocks, step, 1, 2000000000), step);
    EXPECT_EQ(blocks_of_many(blocks, step, 2000000000, 1), blocks - step);
  }
  int before = 0;
  for (int many = 1000; many <= 1000000; many += 1000) {
    const int now = blocks_of_many(blocks, 1, many, 1000000 - many + 1);
    EXPECT_GE(now, before);
    const double time = many * wgmma::grouped::many_unit_time;
    EXPECT_NEAR(now, blocks * time / (time + 1000001 - many), 1.5);
    before = now;
  }
}

TEST(ListBlocks, RoleOfManyRowsHasWholeBatchHeads) {
  const auto of = [](int blocks, int all) { return wgmma::grouped::whole_heads_each(blocks, 260, 4, all); };
  EXPECT_EQ(of(76, 128), 64);    // two batch heads each, in 5/6 of the blocks
  EXPECT_EQ(of(28, 64), 32);     // two each, in 7/6 of them
  EXPECT_EQ(of(44, 192), 44);    // more than four each
  EXPECT_EQ(of(44, 176), 44);    // four each
  EXPECT_EQ(of(60, 32), 64);     // two parts of each
  EXPECT_EQ(of(100, 32), 96);    // three parts of each: four would take more than 7/6
  EXPECT_EQ(of(50, 32), 50);     // two parts would take more than 7/6, one less than 5/6
  EXPECT_EQ(of(12, 22), 12);     // 11 blocks are no multiple of four
  EXPECT_EQ(of(256, 280), 256);  // 280 blocks are too many
  EXPECT_EQ(of(0, 5), 0);
  EXPECT_EQ(of(8, 0), 8);
}

// Late shares have about a fifth or more of the work, in multiples of the largest batch head, and at most four for each
// owner.
TEST(ListDivision, LateShares) {
  std::mt19937 random(1);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  int with         = 0;
  for (int turn = 0; turn < 20000; ++turn) {
    const int total = 1 + below(1 << (3 + below(28))), largest = 1 + below(1 << below(20)), owners = 1 + below(300);
    const LateDivision d = LateDivision::of(total, largest, owners, 16);
    const std::string in =
        std::to_string(total) + " units, " + std::to_string(largest) + ", " + std::to_string(owners) + " owners";
    const int before = d.own.begin_of(d.own.owners);
    if (d.late_count == 0) {
      ASSERT_EQ(before, total) << in;
      ASSERT_TRUE(total > 1 << 30 || total / d.own.owners / 3 < std::max(largest, 16)) << in;
      continue;
    }
    ++with;
    ASSERT_EQ(d.own.owners, owners) << in;
    ASSERT_LE(d.late_count, LateDivision::most_each * owners) << in;
    ASSERT_EQ(d.late_units % largest, 0) << in;
    ASSERT_LE(before, total - total / 5 + owners) << in;
    ASSERT_LT(d.begin_of(owners + d.late_count - 1), total) << in;
    ASSERT_GE(d.begin_of(owners + d.late_count), total) << in;
  }
  EXPECT_GT(with, 1000);
}

// With one register too many, setmaxnreg waits for ever, which only a GPU shows.
TEST(ListBlocks, RegistersOfAllThreadsExist) {
  using namespace wgmma::grouped;
  struct Role {
    int warpgroups, multiplier;
  };
  for (const Role r :
       {Role{1, multiplier_registers(1)}, Role{2, multiplier_registers(2)}, Role{1, byte_multiplier_registers(1)},
        Role{2, byte_multiplier_registers(2)}, Role{1, many_registers}, Role{1, few_registers}}) {
    const int copier    = copier_registers(r.warpgroups, r.multiplier);
    const int registers = compute_threads(r.warpgroups) * r.multiplier + 128 * copier;
    EXPECT_LE(blocks_per_sm(r.warpgroups) * registers, 65536) << r.multiplier;
    for (const int of_thread : {r.multiplier, copier}) {  // what setmaxnreg takes
      EXPECT_EQ(of_thread % 8, 0) << r.multiplier;
      EXPECT_GE(of_thread, 24) << r.multiplier;
      EXPECT_LE(of_thread, 256) << r.multiplier;
    }
  }
}

TEST(ListBlocks, FitTheirMultiprocessor) {
  using namespace wgmma;
  using namespace wgmma::grouped;
  const Device& h200     = cards[3].device;
  constexpr int reserved = 1024;  // bytes of every block, reserved by the system
  for (const auto& [type, head_dim] : {std::pair{Type::fp16, 64}, {Type::fp16, 128}, {Type::fp8_e4m3, 128}})
    for (const int groups : {1, 2}) {
      const auto layout = list_layout(type, head_dim, groups);
      EXPECT_LE(layout.bytes, h200.shared_per_block);
      EXPECT_LE(blocks_per_sm(groups) * (layout.bytes + reserved), h200.shared_per_sm);
      EXPECT_EQ(layout.ring % run_bytes, 0);
      EXPECT_EQ(layout.bytes_ring % run_bytes, 0);
      EXPECT_EQ(layout.assignments % 16, 0);
      EXPECT_EQ(layout.barriers % 8, 0);
      // Products read 64 rows from any unit on.
      EXPECT_GE(layout.rows - layout.ring, groups * tile_rows / unit_rows * unit_bytes(head_dim));
    }
  for (const int head_dim : {64, 128}) {
    const int bytes = mixed_shared_bytes(Type::fp16, head_dim);
    EXPECT_LE(bytes, h200.shared_per_block);
    EXPECT_LE(blocks_per_sm(1) * (bytes + reserved), h200.shared_per_sm);
  }
}

}  // namespace
}  // namespace pagoda::tuned
