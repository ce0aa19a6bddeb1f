// SPDX-License-Identifier: Apache-2.0
// Pages chosen for each sequence, and for each sequence and kv head.
#include "tests/entries/list_scene.hpp"

#include <algorithm>
#include <random>

namespace pagoda::test {
namespace {

template <class Param>
struct ChosenPages : testing::Test {};
TYPED_TEST_SUITE(ChosenPages, SpacesAndTypes, Names);

/// Pages of `num_rows` table rows: each has up to `most` of `pages` pages, in ascending order, and the last one is not
/// full.
Sequences choose(int num_rows, int pages, int most, unsigned seed) {
  std::mt19937 random(seed);
  Sequences sequences;
  for (int r = 0; r < num_rows; ++r) {
    std::vector<int> all(pages);
    for (int i = 0; i < pages; ++i) all[i] = i;
    std::shuffle(all.begin(), all.end(), random);
    all.resize(1 + random() % most);
    std::sort(all.begin(), all.end());
    sequences.lengths.push_back(16 * static_cast<int>(all.size()) - static_cast<int>(random() % 9));
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
void expect_right_of_heads(int kv_heads, int group, int query_len, bool cut, Layout layout, KVOrder order) {
  constexpr int batch       = 3;
  const Sequences sequences = choose(batch * kv_heads, 50, 14, static_cast<unsigned>(kv_heads * group));
  EntryList list;
  list.max_queries = query_len;
  if (cut) list.state_begin = {0};
  for (int s = 0; s < batch; ++s)
    for (int h = 0; h < kv_heads; ++h) {
      const int row = s * kv_heads + h, begin = static_cast<int>(list.queries.size());
      for (int i = 0; i < query_len; ++i) list.queries.push_back({s * query_len + i, row, query_len - i});
      const int first = static_cast<int>(sequences.rows[row].size()) / 2 * 16;
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
