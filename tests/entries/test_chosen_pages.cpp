// SPDX-License-Identifier: Apache-2.0
// Pages chosen for each sequence, and for each sequence and kv head, also by a kernel.
#include "tests/entries/list_scene.hpp"

#include <algorithm>
#include <functional>
#include <random>
#include <utility>
#include <vector>

namespace pagoda::test {
namespace {

template <class Param>
struct ChosenPages : testing::Test {};
TYPED_TEST_SUITE(ChosenPages, SpacesAndTypes, Names);

template <class Param>
struct ChosenPagesOfAnyType : testing::Test {};
using AllTypes = lists::Join<SpacesAndTypes, SpacesAndQuantizedTypes>::type;
TYPED_TEST_SUITE(ChosenPagesOfAnyType, AllTypes, Names);

template <class Space>
struct PagesChosenByKernels : testing::Test {};
TYPED_TEST_SUITE(PagesChosenByKernels, Spaces);

/// Pages of `num_rows` table rows: each has up to `most` of `pages` pages, in ascending order, and the last one need
/// not be full.
Sequences choose(int num_rows, int pages, int most, unsigned seed, int page_size = 16) {
  std::mt19937 random(seed);
  Sequences sequences{.page_size = page_size};
  for (int r = 0; r < num_rows; ++r) {
    std::vector<int> all(pages);
    for (int i = 0; i < pages; ++i) all[i] = i;
    std::shuffle(all.begin(), all.end(), random);
    all.resize(1 + random() % most);
    std::sort(all.begin(), all.end());
    sequences.lengths.push_back(page_size * static_cast<int>(all.size()) - static_cast<int>(random() % page_size));
    sequences.rows.push_back(all);
  }
  return sequences;
}

TYPED_TEST(ChosenPages, OfSequences) {
  using T                   = typename TypeParam::type;
  const Sequences sequences = choose(5, 40, 12, 1);
  const EntryList list      = sequences.plain_list({1, 1, 1, 1, 1});
  Sample<T> sample(sequences.shape({.num_q_heads = 8, .head_dim = 64}, 5));
  sample.set_sight(
      [&](int token, int) { return sequences.sight(token, sequences.lengths[token], sequences.lengths[token] - 1); });
  expect_right<typename TypeParam::space, T>(sample, sequences, list);
}

/// Table row s * kv_heads + h has the pages of sequence s and kv head h, in one entry or in two.
template <class Space, class T>
void expect_right_of_heads(int kv_heads, int group, int query_len, bool cut, Layout layout, KVOrder order,
                           int page_size = 16) {
  constexpr int batch       = 3;
  const Sequences sequences = choose(batch * kv_heads, 50, 14, static_cast<unsigned>(kv_heads * group), page_size);
  EntryList list;
  list.max_queries = query_len;
  if (cut) list.state_begin = {0};
  for (int s = 0; s < batch; ++s)
    for (int h = 0; h < kv_heads; ++h) {
      const int row = s * kv_heads + h, begin = static_cast<int>(list.queries.size());
      for (int i = 0; i < query_len; ++i) list.queries.push_back({s * query_len + i, row, query_len - i});
      const int first = static_cast<int>(sequences.rows[row].size()) / 2 * page_size;
      if (cut) list.entries.push_back({row, 0, first, begin, query_len, 0, h});
      list.entries.push_back({row, cut ? first : 0, -1, begin, query_len, cut ? 1 : -1, h});
    }
  for (int t = 0; cut && t < batch * query_len; ++t) list.state_begin.push_back(list.state_begin.back() + 2);
  Sample<T> sample(
      sequences.shape({.num_q_heads = kv_heads * group, .num_kv_heads = kv_heads, .head_dim = 32, .sinks = group == 4},
                      batch * query_len));
  sample.set_sight([&](int token, int head) {
    const int row = token / query_len * kv_heads + head / group;
    const int end = sequences.lengths[row] - (query_len - 1 - token % query_len);
    return sequences.sight(row, end, end - 1);
  });
  expect_right<Space, T>(sample, sequences, list, {.layout = layout, .order = order});
}

TYPED_TEST(ChosenPages, OfKvHeads) {
  using T = typename TypeParam::type;
  for (const bool cut : {false, true})
    for (const int group : {1, 4, 16})
      for (const auto& [layout, order] : {std::pair(Layout::paged, KVOrder::NHD), {Layout::csr, KVOrder::HND}}) {
        expect_right_of_heads<typename TypeParam::space, T>(3, group, 1, cut, layout, order);
        expect_right_of_heads<typename TypeParam::space, T>(2, group, 4, cut, layout, order);
      }
}

TYPED_TEST(ChosenPagesOfAnyType, PageSizes) {
  using T = typename TypeParam::type;
  for (const int page_size : {1, 5, 16}) {
    expect_right_of_heads<typename TypeParam::space, T>(2, 4, 1, false, Layout::paged, KVOrder::NHD, page_size);
    expect_right_of_heads<typename TypeParam::space, T>(2, 2, 1, true, Layout::csr, KVOrder::HND, page_size);
  }
}

/// Writes a list on the device: an entry for each table row of `batch` sequences with `kv_heads` rows each, for that kv
/// head, or only for the first row of each sequence and all heads. The entries behind them are skipped.
template <class Space, class Entries, class Queries>
void write_list(const Space& exec, const Entries& entries, const Queries& queries, int batch, int kv_heads,
                bool per_head) {
  const int used = per_head ? batch * kv_heads : batch, rows = per_head ? 1 : kv_heads;
  Kokkos::parallel_for(
      "test list", Kokkos::RangePolicy<Space>(exec, 0, static_cast<int>(entries.extent(0))), KOKKOS_LAMBDA(int i) {
        const int row = i * rows;
        entries(i)    = i < used ? Entry{row, 0, -1, i, 1, -1, per_head ? row % kv_heads : -1}
                                 : Entry{1 << 20, 1 << 20, -1, 1 << 20, 0, 7};
        queries(i)    = EntryQuery{row / kv_heads, row, 1};
      });
}

// The list's arrays have a fixed length and are read when a decode runs: another kernel may have written another list.
TYPED_TEST(PagesChosenByKernels, TheListIsReadByTheDecode) {
  using T             = AnyType;
  using Memory        = typename TypeParam::memory_space;
  constexpr int batch = 3, kv_heads = 2, group = 4, capacity = 20;
  const auto sequences    = choose(batch * kv_heads, 40, 9, 11);
  const auto sample_where = [&](const std::function<int(int, int)>& row_of) {
    Sample<T> sample(sequences.shape({.num_q_heads = kv_heads * group, .num_kv_heads = kv_heads}, batch));
    sample.set_sight([&](int token, int head) {
      const int row = row_of(token, head / group);
      return sequences.sight(row, sequences.lengths[row], sequences.lengths[row] - 1);
    });
    return sample;
  };
  const auto of_heads     = sample_where([](int token, int head) { return token * kv_heads + head; });
  const auto of_sequences = sample_where([](int token, int) { return token * kv_heads; });
  Sample<T> of_all(of_heads.shape());  // no token is NaN
  of_all.set_sight([&](int, int) {
    Sight all;
    for (int row = 0; row < batch * kv_heads; ++row)
      for (const auto& at : sequences.sight(row, sequences.lengths[row], 0).tokens) all.tokens.push_back(at);
    return all;
  });
  ListScene<TypeParam, T> scene(of_all, sequences);
  const Kokkos::View<Entry*, Memory> entries("entries", capacity);
  const Kokkos::View<EntryQuery*, Memory> queries("queries", capacity);
  const auto problem = scene.problem({entries, queries}, 0);
  const auto plan    = scene.plan({capacity, 1, capacity});
  for (const bool per_head : {true, false, true}) {
    scene.scene().poison_outputs();
    write_list(scene.exec(), entries, queries, batch, kv_heads, per_head);
    scene.decode(plan, problem);
    EXPECT_TRUE(scene.right(per_head ? of_heads : of_sequences)) << (per_head ? "for each head" : "for all heads");
  }
}

// Entries of one kv head beside entries of all.
TYPED_TEST(ChosenPages, OfSomeSequences) {
  using T                   = typename TypeParam::type;
  const Sequences sequences = choose(4, 30, 9, 5);
  EntryList list;
  list.max_queries = 1;
  for (int row = 0; row < 4; ++row) list.queries.push_back({row == 3 ? 2 : row, row, 1});
  list.entries = {{0, 0, -1, 0, 1, -1}, {2, 0, -1, 2, 1, -1, 0}, {1, 0, -1, 1, 1, -1}, {3, 0, -1, 3, 1, -1, 1}};
  Sample<T> sample(sequences.shape({.num_q_heads = 10, .num_kv_heads = 2, .head_dim = 64}, 3));
  sample.set_sight([&](int token, int head) {
    const int row = token == 2 && head >= 5 ? 3 : token;
    return sequences.sight(row, sequences.lengths[row], 0);
  });
  expect_right<typename TypeParam::space, T>(sample, sequences, list);
}

}  // namespace
}  // namespace pagoda::test
