// SPDX-License-Identifier: Apache-2.0
#include "src/pool/page_table.hpp"
#include "tests/pool/prompt_numbers.hpp"

#include <pagoda/error.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

/// Random calls of a page table whose sequences have names, with a memory in which every position remembers the number
/// of the token written there. Everything that the index should know is found by search.
namespace pagoda::test {
namespace {

using detail::PageTable;
using detail::TokenRun;

constexpr int slots = 6, max_len = 22, page_size = 4, pages = 17;

/// Name of a page: salt, kind, and the ids (or hashes) of all tokens (pages) up to its end.
using Path = std::vector<std::int64_t>;

struct Named {
  std::vector<int> tokens        = {};  ///< numbers
  std::uint64_t salt             = 0;
  bool by_hash                   = false;
  Path path                      = {};  ///< of all that is named: without its incomplete page
  std::vector<std::int64_t> rest = {};
  bool open                      = false;  ///< named neither by ids nor by hashes yet
};

struct TablesTest {
  std::mt19937 random{11};
  PageTable table{{"pool", slots, max_len, page_size, pages, false}};
  PageTable twin{{"pool", slots, max_len, page_size, pages, false}};  // gets no calls that leave no trace
  std::vector<int> memory = std::vector<int>(pages * page_size);
  std::map<int, Named> live{};
  std::map<Path, int> index{};  ///< the pages that should be found
  PromptNumbers numbers{};
  int next_number = 1;
  int hits = 0, refused = 0, undone = 0, evicted = 0, lost = 0, unheld_but_blocked = 0, contradictions = 0;
  std::int64_t hit_tokens = 0, prompt_tokens = 0;

  int below(int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); }
  int fresh() { return next_number++; }
  int any_slot() { return std::next(live.begin(), below(static_cast<int>(live.size())))->first; }
  static Path begin(std::uint64_t salt, bool by_hash) { return {static_cast<std::int64_t>(salt), by_hash ? 1 : 0}; }
  static std::size_t page_entries(bool by_hash) { return by_hash ? 1 : page_size; }

  /// Removes evicted pages from the model's index; they must not have been needed.
  void drop_evicted() {
    std::erase_if(index, [&](const auto& entry) { return !table.is_indexed(entry.second); });
  }
  /// Names the next ids or hashes of a sequence in the model.
  void add_names(int slot, const std::vector<std::int64_t>& names) {
    Named& s        = live[slot];
    const auto unit = page_entries(s.by_hash);
    std::vector<std::int64_t> all(s.rest.begin(), s.rest.end());
    all.insert(all.end(), names.begin(), names.end());
    std::size_t done = 0;
    for (; all.size() - done >= unit; done += unit) {
      s.path.insert(s.path.end(), all.begin() + static_cast<std::ptrdiff_t>(done),
                    all.begin() + static_cast<std::ptrdiff_t>(done + unit));
      index.try_emplace(s.path, table.pages(slot)[(s.path.size() - 2) / unit - 1]);
    }
    s.rest.assign(all.begin() + static_cast<std::ptrdiff_t>(done), all.end());
  }

  /// A prompt, and its names as entries of paths.
  struct Drawn : DrawnPrompt {
    std::vector<std::int64_t> names;
  };
  void draw(Drawn& d) {
    numbers.draw(d, random, below(max_len + 1), page_size, [&] { return fresh(); });
    if (d.prompt.token_ids.empty()) {
      for (const auto hash : d.hashes) d.names.push_back(static_cast<std::int64_t>(hash));
    } else {
      d.names.assign(d.ids.begin(), d.ids.end());
    }
  }
  /// Tokens of the longest run of pages in the model's index, found by search.
  int expected_match(const Drawn& d) const {
    const bool by_hash = d.prompt.token_ids.empty();
    Path path          = begin(d.prompt.salt, by_hash);
    int found          = 0;
    for (; (found + 1) * page_size < static_cast<int>(d.tokens.size()); ++found) {
      const auto unit = static_cast<std::ptrdiff_t>(page_entries(by_hash));
      path.insert(path.end(), d.names.begin() + found * unit, d.names.begin() + (found + 1) * unit);
      if (!index.contains(path)) break;
    }
    return found * page_size;
  }

  void write(int slot, int from) {
    for (int t = from; t < static_cast<int>(live[slot].tokens.size()); ++t)
      memory[table.position(slot, t)] = live[slot].tokens[t];
  }

  /// Undoes some calls, some of these after they have written to the pages that they took. written: first position of
  /// each sequence that the call writes. again: makes the call of the twin.
  template <class Again>
  bool taken_back(const std::vector<std::pair<int, int>>& written, const Again& again) {
    if (below(4) != 0) return false;
    ++undone;
    const bool overwritten = below(4) == 0;
    if (overwritten)
      for (const auto& [slot, from] : written)
        for (int t = from; t < table.seq_len(slot); ++t)
          if (twin.ref_count(table.pages(slot)[t / page_size]) == 0) memory[table.position(slot, t)] = -fresh();
    table.undo(overwritten);
    if (!overwritten) return true;
    // The evicted pages are not in the index any more, and no others are missing.
    again(twin);
    twin.undo(true);
    lost += static_cast<int>(index.size());
    drop_evicted();
    lost -= static_cast<int>(index.size());
    return true;
  }

  void admit_prompt() {
    Drawn d;
    draw(d);
    const int length = static_cast<int>(d.tokens.size()), cached = expected_match(d);
    ASSERT_EQ(table.match(d.prompt), cached);
    const bool whole = below(3) > 0;
    const int rows   = whole ? length - below(cached + 1) : -1;
    const bool can   = table.can_admit(d.prompt);
    int slot         = -1;
    try {
      slot = table.admit(d.prompt, rows);
    } catch (const OutOfCapacity&) {
      ++refused;
      ASSERT_TRUE(!can);
      return;
    }
    ASSERT_TRUE(can || !whole);
    ASSERT_EQ(table.named_tokens(slot), cached);
    ASSERT_EQ(table.seq_len(slot), whole ? length : cached);
    if (taken_back({{slot, cached}}, [&](PageTable& t) { t.admit(d.prompt, rows); })) return;
    ASSERT_EQ(twin.admit(d.prompt, rows), slot);
    evicted += static_cast<int>(index.size());
    drop_evicted();
    evicted -= static_cast<int>(index.size());
    ASSERT_TRUE(!live.contains(slot));
    const bool by_hash = d.prompt.token_ids.empty() && length > 0;
    live[slot]         = {d.tokens, d.prompt.salt, by_hash, begin(d.prompt.salt, by_hash), {}, length == 0};
    live[slot].tokens.resize(whole ? length : cached);
    write(slot, cached);
    table.name_admitted(slot, d.prompt, cached), twin.name_admitted(slot, d.prompt, cached);
    if (!whole) d.names.resize(static_cast<std::size_t>(cached / page_size) * page_entries(by_hash));
    add_names(slot, d.names);
    hits += cached > 0;
    hit_tokens += cached, prompt_tokens += length;
  }

  void admit() {
    const int n = below(max_len + 1);
    int slot    = -1;
    try {
      slot = table.admit(n);
    } catch (const OutOfCapacity&) {
      ++refused;
      return;
    }
    if (taken_back({{slot, 0}}, [&](PageTable& t) { t.admit(n); })) return;
    ASSERT_EQ(twin.admit(n), slot);
    drop_evicted();
    live[slot] = {.path = begin(0, false), .open = true};
    for (int i = 0; i < n; ++i) live[slot].tokens.push_back(fresh());
    write(slot, 0);
  }

  void extend() {
    std::vector<int> list, counts;
    std::vector<std::pair<int, int>> written;
    std::vector<TokenRun> copies, twin_copies;
    for (const auto& [slot, s] : live)
      if (below(2) == 0) list.push_back(slot), counts.push_back(below(6));
    for (const int slot : list) written.emplace_back(slot, table.seq_len(slot));
    try {
      table.extend("", list, counts, copies);
    } catch (const std::exception&) {  // too long, or no room
      ++refused;
      return;
    }
    if (taken_back(written, [&](PageTable& t) { t.extend("", list, counts, twin_copies); })) return;
    twin.extend("", list, counts, twin_copies);
    ASSERT_EQ(copies.size(), twin_copies.size());
    drop_evicted();
    const auto old = memory;
    for (const auto& copy : copies) std::copy_n(old.begin() + copy.from, copy.count, memory.begin() + copy.to);
    for (std::size_t i = 0; i < list.size(); ++i) {
      for (int n = 0; n < counts[i]; ++n) live[list[i]].tokens.push_back(fresh());
      write(list[i], written[i].second);
    }
  }

  void fork() {
    const int parent = any_slot(), n = below(table.seq_len(parent) + 1);
    std::vector<TokenRun> copies;
    int child = -1;
    try {
      child = table.fork(parent, n, copies);
    } catch (const OutOfCapacity&) {
      ++refused;
      return;
    }
    if (taken_back({}, [&](PageTable& t) { t.fork(parent, n, copies); })) return;
    ASSERT_EQ(twin.fork(parent, n, copies), child);
    Named s = live[parent];
    s.tokens.resize(n);
    // What is named of the child: all that is named of its tokens.
    const auto unit = page_entries(s.by_hash);
    std::vector<std::int64_t> names(s.path.begin() + 2, s.path.end());
    names.insert(names.end(), s.rest.begin(), s.rest.end());
    const auto most = s.by_hash ? static_cast<std::size_t>(n / page_size) : static_cast<std::size_t>(n);
    names.resize(std::min(names.size(), most));
    s.path.resize(2);
    const auto full = static_cast<std::ptrdiff_t>(names.size() / unit * unit);
    s.path.insert(s.path.end(), names.begin(), names.begin() + full);
    s.rest.assign(names.begin() + full, names.end());
    live[child] = s;
  }

  void release() {
    const int slot = any_slot();
    table.release(slot), twin.release(slot);
    live.erase(slot);
  }

  void name() {
    const int slot  = any_slot();
    Named& s        = live[slot];
    const int named = table.named_tokens(slot), left = static_cast<int>(s.tokens.size()) - named;
    const bool by_hash = s.by_hash || (s.open && below(2) == 0);
    std::vector<std::uint64_t> hashes;
    std::vector<int> ids;
    std::vector<std::int64_t> names;
    if (by_hash) {
      hashes = PromptNumbers::hashes(s.tokens, named / page_size, below(left / page_size + 1), page_size);
      for (const auto hash : hashes) names.push_back(static_cast<std::int64_t>(hash));
    } else {
      ids = numbers.ids(s.salt, s.tokens, named, below(left + 1));
      names.assign(ids.begin(), ids.end());
    }
    const auto call = [&](PageTable& t) { by_hash ? t.name(slot, hashes) : t.name(slot, ids); };
    if (!names.empty() && contradicts(slot, by_hash, names)) {
      EXPECT_THROW(call(table), InvalidArgument);
      ++contradictions;
      return;
    }
    call(table), call(twin);
    if (names.empty()) return;
    if (s.open) s.by_hash = by_hash, s.path = begin(s.salt, by_hash);
    s.open = false;
    add_names(slot, names);
    if (named == 0 && s.salt == 0 && !by_hash) numbers.use(ids);
  }

  /// True if these names would give a page of the index a second name.
  bool contradicts(int slot, bool by_hash, const std::vector<std::int64_t>& names) const {
    const Named& s  = live.at(slot);
    const auto unit = page_entries(by_hash);
    Path path       = s.open ? begin(s.salt, by_hash) : s.path;
    auto all        = s.rest;
    all.insert(all.end(), names.begin(), names.end());
    for (std::size_t i = 0; i < all.size(); ++i) {
      path.push_back(all[i]);
      if ((i + 1) % unit != 0) continue;
      const int page = table.pages(slot)[(path.size() - 2) / unit - 1];
      const auto at  = index.find(path);
      if (table.is_indexed(page) && (at == index.end() || at->second != page)) return true;
    }
    return false;
  }

  void evict() {
    const int n = below(4), most = table.evictable_pages();
    ASSERT_EQ(table.evict(n), std::min(n, most));
    ASSERT_EQ(twin.evict(n), std::min(n, most));
    drop_evicted();
  }

  void step() {
    switch (live.empty() ? below(4) : below(14)) {
      case 0:
      case 1:
      case 2:
        return admit_prompt();
      case 3:
        return admit();
      case 4:
        return fork();
      case 5:
      case 6:
      case 7:
        return release();
      case 8:
      case 9:
        return name();
      case 10:
        return below(3) == 0 ? evict() : name();
      default:
        return extend();
    }
  }

  void check() {
    // Contents: no page of a sequence was given to another.
    std::vector<int> holders(pages, 0);
    for (const auto& [slot, s] : live) {
      ASSERT_EQ(table.seq_len(slot), static_cast<int>(s.tokens.size()));
      for (int t = 0; t < table.seq_len(slot); ++t)
        ASSERT_EQ(memory[table.position(slot, t)], s.tokens[t]) << "slot " << slot << " token " << t;
      for (const int page : table.pages(slot)) ++holders[page];
      ASSERT_EQ(table.named_tokens(slot),
                static_cast<int>((s.path.size() - 2) / page_entries(s.by_hash) * page_size + s.rest.size()));
      const auto own = table.pages(slot), others = twin.pages(slot);
      ASSERT_TRUE(std::equal(own.begin(), own.end(), others.begin(), others.end()));
    }
    // The index: a page for each name, and every page's parent.
    std::set<int> indexed;
    for (const auto& [path, page] : index) {
      ASSERT_TRUE(table.is_indexed(page));
      indexed.insert(page);
      auto parent = path;
      parent.resize(path.size() - page_entries(path[1] == 1));
      ASSERT_TRUE(parent.size() == 2 || index.contains(parent));
    }
    ASSERT_EQ(indexed.size(), index.size());
    ASSERT_EQ(table.indexed_pages(), static_cast<int>(index.size()));
    // Pages are held, unused, or in the index. Of the latter, those are blocked on which others depend.
    const auto is_prefix = [](const Path& a, const Path& b) {
      return a.size() <= b.size() && std::equal(a.begin(), a.end(), b.begin());
    };
    int evictable = 0, unused = 0, used = 0;
    for (int page = 0; page < pages; ++page) {
      ASSERT_EQ(table.ref_count(page), holders[page]);
      used += holders[page] > 0;
      unused += holders[page] == 0 && !indexed.contains(page);
    }
    for (const auto& [path, page] : index) {
      bool blocked = false;
      for (const auto& [other, other_page] : index) blocked |= is_prefix(path, other) && holders[other_page] > 0;
      for (const auto& [slot, s] : live) blocked |= is_prefix(path, s.path);
      evictable += !blocked;
      unheld_but_blocked += blocked && holders[page] == 0;
    }
    ASSERT_EQ(table.used_pages(), used);
    ASSERT_EQ(table.evictable_pages(), evictable);
    ASSERT_EQ(table.free_pages(), unused + evictable);
    // The twin, which never failed, has the same index and order of eviction.
    ASSERT_EQ(twin.free_pages(), table.free_pages());
    for (int page = 0; page < pages; ++page) ASSERT_EQ(twin.is_indexed(page), table.is_indexed(page)) << page;
    ASSERT_EQ(table.prefix_stats(), twin.prefix_stats());
    ASSERT_EQ(table.prefix_stats().hit_tokens, hit_tokens);
    ASSERT_EQ(table.prefix_stats().miss_tokens, prompt_tokens - hit_tokens);
  }
};

TEST(PageTable, PrefixesAgainstTheModel) {
  TablesTest test;
  for (int i = 0; i < 40000; ++i) {
    test.step();
    if (!testing::Test::HasFailure()) test.check();
    ASSERT_FALSE(testing::Test::HasFailure()) << "step " << i;
  }
  EXPECT_GT(test.hits, 500);
  EXPECT_GT(test.evicted, 400);
  EXPECT_GT(test.undone, 400);
  EXPECT_GT(test.refused, 100);
  EXPECT_GT(test.lost, 10);
  EXPECT_GT(test.contradictions, 0);
  EXPECT_GT(test.unheld_but_blocked, 50);
}

}  // namespace
}  // namespace pagoda::test
