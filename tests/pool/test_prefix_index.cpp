// SPDX-License-Identifier: Apache-2.0
#include "src/pool/prefix_index.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

namespace pagoda::test {
namespace {

using detail::PageName;
using detail::PrefixIndex;

constexpr int num_pages = 20, page_size = 2;

/// The index as lists, with everything found by search.
struct NaiveIndex {
  struct Page {
    int parent;
    std::vector<int> tokens;
    std::uint64_t hash, salt;
    int holds;
    bool operator==(const Page&) const = default;
  };
  std::map<int, Page> pages;
  std::vector<int> order;  ///< evictable pages, the next to evict first

  bool blocked(int page) const {
    if (pages.at(page).holds > 0) return true;
    return std::ranges::any_of(pages, [&](const auto& p) { return p.second.parent == page && blocked(p.first); });
  }
  int depth(int page) const { return page == PrefixIndex::root ? 0 : 1 + depth(pages.at(page).parent); }
  int find(int parent, const PageName& name) const {
    for (const auto& [page, p] : pages)
      if (p.parent == parent && std::ranges::equal(p.tokens, name.tokens) && p.hash == name.hash &&
          (parent != PrefixIndex::root || p.salt == name.salt))
        return page;
    return PrefixIndex::none;
  }
  /// Pages that became evictable in one call come last, children before parents.
  void refresh() {
    std::erase_if(order, [&](int page) { return !pages.contains(page) || blocked(page); });
    std::vector<int> added;
    for (const auto& [page, p] : pages)
      if (!blocked(page) && std::ranges::find(order, page) == order.end()) added.push_back(page);
    std::ranges::sort(added, {}, [&](int page) { return -depth(page); });
    order.insert(order.end(), added.begin(), added.end());
  }
};

struct Twins {
  PrefixIndex index;
  NaiveIndex naive;

  explicit Twins(std::uint64_t mask) : index(num_pages, page_size, mask) { index.enable(); }

  void expect_same() const {
    ASSERT_EQ(index.size(), static_cast<int>(naive.pages.size()));
    ASSERT_EQ(index.evictable(), static_cast<int>(naive.order.size()));
    for (int page = 0; page < num_pages; ++page) {
      ASSERT_EQ(index.contains(page), naive.pages.contains(page)) << page;
      if (!index.contains(page)) continue;
      const auto& p = naive.pages.at(page);
      ASSERT_EQ(index.parent(page), p.parent);
      ASSERT_TRUE(p.parent == PrefixIndex::root || index.contains(p.parent)) << "a page without its parent";
      ASSERT_TRUE(std::ranges::equal(index.tokens(page), p.tokens));
      ASSERT_EQ(index.is_evictable(page), !naive.blocked(page));
      ASSERT_EQ(index.find(p.parent, {p.tokens, p.hash, p.salt}), page);
    }
    // A copy gives up all that it can, in order.
    PrefixIndex copy = index;
    std::vector<int> order;
    while (copy.evictable() > 0) order.push_back(copy.evict());
    ASSERT_EQ(order, naive.order);
  }
};

class PrefixIndexTest : public testing::TestWithParam<std::uint64_t> {};

// Masks of few bits make hashes collide: pages are told apart by their tokens and parents.
INSTANTIATE_TEST_SUITE_P(HashMasks, PrefixIndexTest, testing::Values(0, 3, ~std::uint64_t(0)));

TEST_P(PrefixIndexTest, RandomCallsAgainstTheNaiveIndex) {
  std::mt19937 random(5);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  Twins t(GetParam());
  int inserted = 0, evicted = 0, undone = 0, found = 0, known = 0;
  const auto any_page = [&] {
    return std::next(t.naive.pages.begin(), below(static_cast<int>(t.naive.pages.size())))->first;
  };
  for (int step = 0; step < 6000; ++step) {
    const int call = t.naive.pages.empty() ? 0 : below(9);
    if (call < 4) {  // look up a name, and insert it if the index does not have it
      const int parent = t.naive.pages.empty() || below(3) == 0 ? PrefixIndex::root : any_page();
      const std::vector<int> tokens{below(2), below(2)};
      PageName name{.salt = static_cast<std::uint64_t>(below(2))};
      if (below(3) > 0) name.tokens = tokens;
      if (name.tokens.empty()) name.hash = static_cast<std::uint64_t>(below(3));
      const int page = t.naive.find(parent, name);
      ASSERT_EQ(t.index.find(parent, name), page);
      ++(page == PrefixIndex::none ? found : known);
      int free = 0;
      while (free < num_pages && t.naive.pages.contains(free)) ++free;
      if (page != PrefixIndex::none || free == num_pages) continue;
      t.index.insert(parent, name, free);
      t.naive.pages[free] = {parent, {name.tokens.begin(), name.tokens.end()}, name.hash, name.salt, 1};
      ++inserted;
    } else if (call == 4) {
      const int page = any_page();
      t.index.hold(page);
      ++t.naive.pages[page].holds;
    } else if (call < 7) {
      const int page = any_page();
      if (t.naive.pages[page].holds == 0) continue;
      t.index.drop(page);
      --t.naive.pages[page].holds;
    } else {  // hold a path, evict some, and perhaps revert it all
      const NaiveIndex before = t.naive;
      std::vector<int> path, gone;
      for (int page = any_page(); page != PrefixIndex::root; page = t.index.parent(page)) path.push_back(page);
      std::ranges::reverse(path);
      for (const int page : path) {
        t.index.hold(page);
        ++t.naive.pages[page].holds;
      }
      t.naive.refresh();
      for (int n = below(4); n > 0 && t.index.evictable() > 0; --n) {
        gone.push_back(t.index.evict());
        ASSERT_EQ(gone.back(), t.naive.order.front());
        for (const auto& [page, p] : t.naive.pages) ASSERT_NE(p.parent, gone.back()) << "evicted before its child";
        t.naive.pages.erase(gone.back());
        t.naive.refresh();
        ++evicted;
      }
      if (call == 7) {
        for (; !gone.empty(); gone.pop_back()) t.index.undo_evict(gone.back());
        for (; !path.empty(); path.pop_back()) t.index.undo_hold(path.back());
        t.naive = before;
        ++undone;
      } else {
        for (; !path.empty(); path.pop_back()) {
          t.index.drop(path.back());
          --t.naive.pages[path.back()].holds;
          t.naive.refresh();
        }
      }
    }
    t.naive.refresh();
    t.expect_same();
    ASSERT_FALSE(HasFailure()) << "step " << step;
  }
  EXPECT_GT(inserted, 300);
  EXPECT_GT(evicted, 300);
  EXPECT_GT(undone, 300);
  EXPECT_GT(std::min(found, known), 300);
}

TEST(PrefixIndex, LeastRecentlyUsedFirstAndLeavesBeforeParents) {
  PrefixIndex index(8, 1);
  EXPECT_FALSE(index.contains(3));
  EXPECT_EQ(index.find(PrefixIndex::root, {.hash = 1}), PrefixIndex::none);
  index.enable();
  const std::vector<int> ids{7, 8, 9};
  const std::span<const int> all = ids;
  index.insert(PrefixIndex::root, {.tokens = all.first(1)}, 5);
  index.insert(5, {.tokens = all.subspan(1, 1)}, 2);
  index.insert(5, {.tokens = all.subspan(2, 1)}, 6);
  index.insert(PrefixIndex::root, {.tokens = all.subspan(1, 1)}, 0);
  index.drop(5), index.drop(6), index.drop(0);
  EXPECT_EQ(index.evictable(), 2);  // 2 is held, hence 5 is blocked
  index.drop(2);
  index.hold(6), index.drop(6);  // used again
  EXPECT_EQ(index.evictable(), 4);
  EXPECT_EQ(index.evict(), 0);
  EXPECT_EQ(index.evict(), 2);
  EXPECT_EQ(index.evict(), 6);
  EXPECT_EQ(index.evict(), 5);
  EXPECT_EQ(index.size(), 0);
}

}  // namespace
}  // namespace pagoda::test
