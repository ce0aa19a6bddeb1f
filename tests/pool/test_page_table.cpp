// SPDX-License-Identifier: Apache-2.0
#include "src/pool/page_table.hpp"

#include <pagoda/error.hpp>

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace pagoda::test {
namespace {

using detail::PageTable;
using detail::TokenRun;

PageTable::Shape shape(bool contiguous) {
  return {"pool", 6, 20, contiguous ? 20 : 4, contiguous ? 6 : 18, contiguous};
}

/// A copy of the device's tables, updated only by reported changes.
struct Shadow {
  std::map<int, int> lengths;
  std::map<std::pair<int, int>, int> pages;
  int told = 0;
  void update(PageTable& table) {
    table.for_changes([&](int slot, int length) { lengths[slot] = length, ++told; },
                      [&](int slot, int column, int page) { pages[{slot, column}] = page, ++told; },
                      [&](int slot, int column, int count) {
                        for (int i = 0; i < count; ++i) pages[{slot, column + i}] = -1, ++told;
                      });
    table.mark_synced();
  }
  int page(int slot, int column) const {
    const auto at = pages.find({slot, column});
    return at == pages.end() ? -1 : at->second;
  }
};

void expect_same(const Shadow& shadow, const PageTable& table) {
  for (int slot = 0; slot < 6; ++slot) {
    const bool holds   = table.holds(slot);
    const auto at      = shadow.lengths.find(slot);
    const int recorded = at == shadow.lengths.end() ? 0 : at->second;
    ASSERT_EQ(recorded, holds ? table.seq_len(slot) : 0);
    const auto pages = table.pages(slot);
    for (int column = 0; column < 6; ++column)
      ASSERT_EQ(shadow.page(slot, column), column < static_cast<int>(pages.size()) ? pages[column] : -1);
  }
}

TEST(PageTable, TellsExactlyWhatHasChanged) {
  PageTable table(shape(false));
  Shadow shadow;
  std::vector<TokenRun> copies;
  const int a = table.admit(7);
  shadow.update(table);
  EXPECT_EQ(shadow.told, 1 + 2);  // a length, two pages
  table.extend("", std::vector<int>{a}, {}, copies);
  shadow.update(table);
  EXPECT_EQ(shadow.told, 3 + 1);  // a length
  table.extend("", std::vector<int>{a}, {}, copies);
  shadow.update(table);
  EXPECT_EQ(shadow.told, 4 + 2);  // a length, a page
  shadow.update(table);
  EXPECT_EQ(shadow.told, 6);  // nothing
  const int b = table.fork(a, 9, copies);
  shadow.update(table);
  EXPECT_EQ(shadow.told, 6 + 4);
  EXPECT_TRUE(copies.empty());
  table.extend("", std::vector<int>{b}, {}, copies);
  shadow.update(table);
  EXPECT_EQ(shadow.told, 10 + 2);  // a length, the page it copied
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_EQ(copies[0].count, 1);
  EXPECT_EQ(copies[0].from, std::int64_t(table.pages(a)[2]) * 4);
  EXPECT_EQ(copies[0].to, std::int64_t(table.pages(b)[2]) * 4);
  table.release(a);
  shadow.update(table);
  EXPECT_EQ(shadow.told, 12 + 4);
  expect_same(shadow, table);
}

TEST(PageTable, RunsStayWithinPages) {
  PageTable table({"pool", 2, 1000, 48, 40, false});
  const int other = table.admit(50), a = table.admit(0);
  std::vector<TokenRun> copies, runs;
  table.extend("", std::vector<int>{a}, std::vector<int>{30}, copies);
  table.extend("", std::vector<int>{other, a}, std::vector<int>{60, 170}, copies);
  table.add_runs(a, 20, 180, 1000, runs);
  int t = 20;
  for (const auto& run : runs) {
    EXPECT_EQ(run.from, 1000 + t - 20);
    EXPECT_EQ(run.to, table.position(a, t));
    EXPECT_GT(run.count, 0);
    EXPECT_EQ(run.to / 48, (run.to + run.count - 1) / 48);
    t += run.count;
  }
  EXPECT_EQ(t, 200);
}

TEST(PageTable, RandomCallsKeepEveryInvariant) {
  for (const bool contiguous : {false, true}) {
    std::mt19937 random(contiguous ? 7 : 8);
    const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    PageTable table(shape(contiguous)), twin(shape(contiguous));  // the twin gets successful calls only
    Shadow shadow;
    std::set<int> live;
    int refused = 0, undone = 0;
    for (int step = 0; step < 4000; ++step) {
      std::vector<TokenRun> copies, twin_copies;
      // Some calls are undone. Afterwards the table hands out the same slots and pages as the twin.
      const auto taken_back = [&] {
        if (below(4) != 0) return false;
        table.undo();
        copies.clear();
        ++undone;
        return true;
      };
      const auto any = [&] { return *std::next(live.begin(), below(static_cast<int>(live.size()))); };
      try {
        switch (live.empty() ? 0 : below(5)) {
          case 0: {
            const int n = below(22), slot = table.admit(n);
            if (taken_back()) break;
            ASSERT_TRUE(live.insert(slot).second);
            ASSERT_EQ(twin.admit(n), slot);
            break;
          }
          case 1: {
            const int parent = any(), n = below(22), child = table.fork(parent, n, copies);
            if (taken_back()) break;
            ASSERT_TRUE(live.insert(child).second);
            ASSERT_EQ(twin.fork(parent, n, twin_copies), child);
            break;
          }
          case 2: {
            const int slot = any();
            table.release(slot);
            twin.release(slot);
            live.erase(slot);
            break;
          }
          default: {
            std::vector<int> slots, counts;
            for (const int slot : live)
              if (below(2) == 0) slots.push_back(slot), counts.push_back(below(6));
            table.extend("", slots, counts, copies);
            if (taken_back()) break;
            twin.extend("", slots, counts, twin_copies);
          }
        }
      } catch (const InvalidArgument&) {
        ++refused;
      } catch (const OutOfCapacity&) {
        ++refused;
      }
      // The same pages as the twin's, so only successful calls had an effect.
      std::map<int, int> holders;
      std::int64_t held = 0;
      for (int slot = 0; slot < 6; ++slot) {
        ASSERT_EQ(table.holds(slot), live.contains(slot));
        ASSERT_EQ(twin.holds(slot), live.contains(slot));
        const auto pages = table.pages(slot), twin_pages = twin.pages(slot);
        ASSERT_TRUE(std::equal(pages.begin(), pages.end(), twin_pages.begin(), twin_pages.end()));
        for (const int page : pages) ++holders[page];
        if (!live.contains(slot)) {
          ASSERT_TRUE(pages.empty());
          continue;
        }
        held += table.seq_len(slot);
        ASSERT_EQ(static_cast<int>(pages.size()), contiguous ? 1 : (table.seq_len(slot) + 3) / 4);
        ASSERT_TRUE(!contiguous || pages[0] == slot);
      }
      for (int page = 0; page < table.shape().num_pages; ++page) ASSERT_EQ(table.ref_count(page), holders[page]);
      std::erase_if(holders, [](const auto& page) { return page.second == 0; });
      ASSERT_EQ(table.used_pages(), static_cast<int>(holders.size()));
      ASSERT_EQ(table.tokens_held(), held);
      ASSERT_EQ(copies.size(), twin_copies.size());
      for (const auto& copy : copies) ASSERT_NE(copy.from / table.shape().page_size, copy.to / table.shape().page_size);
      if (below(3) == 0) {
        shadow.update(table);
        expect_same(shadow, table);
      }
    }
    EXPECT_GT(refused, 100);
    EXPECT_GT(undone, 100);
  }
}

}  // namespace
}  // namespace pagoda::test
