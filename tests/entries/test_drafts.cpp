// SPDX-License-Identifier: Apache-2.0
// Trees of draft tokens: every query token sees the context, its ancestors and itself.
#include "tests/entries/list_scene.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>

namespace pagoda::test {
namespace {

using AllTypes = lists::Join<SpacesAndTypes, SpacesAndQuantizedTypes>::type;

template <class Param>
struct Drafts : testing::Test {};
TYPED_TEST_SUITE(Drafts, SpacesAndTypes, Names);

template <class Param>
struct DraftsOfAnyType : testing::Test {};
TYPED_TEST_SUITE(DraftsOfAnyType, AllTypes, Names);

/// A sequence of `context` tokens, and behind them a tree of drafts, or as many tokens without a mask.
struct Drafted {
  int context = 0;
  std::vector<int> parents{};  ///< of each draft: an earlier one, or -1
  bool masked = true;

  int drafts() const { return static_cast<int>(parents.size()); }
  /// Whether draft i sees draft j.
  bool sees(int i, int j) const {
    if (!masked) return j <= i;
    for (; i > j; i = parents[i]) {
    }
    return i == j;
  }
};

Drafted random_tree(std::mt19937& random, int context, int drafts) {
  Drafted d{context};
  for (int i = 0; i < drafts; ++i) d.parents.push_back(static_cast<int>(random() % (i + 1)) - 1);
  return d;
}

/// Sequences with drafts, their list, and what each query token sees.
struct DraftProblem {
  std::vector<Drafted> trees;
  Sequences sequences;
  EntryList list;
  std::vector<int> sequence_of{}, draft_of{};  ///< of each query token

  /// cut: the context's whole pages have an entry of their own. The rows of q are in random order.
  DraftProblem(const std::vector<Drafted>& of, bool cut, bool contiguous = false) : trees(of) {
    int tokens = 0, page = 0;
    for (const Drafted& d : trees) tokens += d.drafts();
    sequence_of.resize(tokens), draft_of.resize(tokens);
    sequences.contiguous = contiguous;
    std::vector<int> rows(tokens), states(tokens, 0);
    std::iota(rows.begin(), rows.end(), 0);
    std::shuffle(rows.begin(), rows.end(), std::mt19937(tokens));
    int next = 0;
    for (int s = 0; s < static_cast<int>(trees.size()); ++s) {
      const Drafted& d = trees[s];
      const int n = d.drafts(), length = d.context + n, begin = static_cast<int>(list.queries.size());
      sequences.lengths.push_back(length);
      sequences.rows.emplace_back();
      for (int i = 0; i < length; i += sequences.page_size) sequences.rows.back().push_back(page++);
      const int whole = cut ? d.context / sequences.page_size * sequences.page_size : 0;
      if (whole > 0) list.entries.push_back({s, 0, whole, begin, n, 0});
      list.entries.push_back({s, whole, -1, begin, n, whole > 0 ? 1 : -1});
      list.max_queries = std::max(list.max_queries, n);
      for (int i = 0; i < n; ++i) {
        const int row    = rows[next++];
        sequence_of[row] = s, draft_of[row] = i, states[row] = whole > 0 ? 2 : 0;
        list.queries.push_back({row, s, d.masked ? n : n - i, d.masked ? static_cast<int>(list.masks.size()) : -1});
        if (!d.masked) continue;
        std::uint64_t bits[2] = {};
        for (int j = 0; j < n; ++j) bits[j / 64] |= std::uint64_t(d.sees(i, j)) << (j % 64);
        list.masks.insert(list.masks.end(), bits, bits + 2);
      }
    }
    if (cut) list.state_begin = {0};
    for (int t = 0; cut && t < tokens; ++t) list.state_begin.push_back(list.state_begin.back() + states[t]);
  }

  template <class T>
  Sample<T> sample(const Shape& options) const {
    Sample<T> sample(sequences.shape(options, static_cast<int>(draft_of.size())));
    sample.set_sight([this](int token, int) -> std::optional<Sight> {
      const int s = sequence_of[token], i = draft_of[token];
      const Drafted& d = trees[s];
      Sight sight      = sequences.sight(s, d.context, 0);
      for (int j = 0; j < d.drafts(); ++j)
        if (d.sees(i, j)) sight.tokens.push_back(sequences.at(s, d.context + j));
      return sight;
    });
    return sample;
  }
};

TYPED_TEST(DraftsOfAnyType, RandomTrees) {
  using T = typename TypeParam::type;
  std::mt19937 random(3);
  for (const int drafts : {1, 2, 9, 63, 64, 65, 128}) {
    DraftProblem p({random_tree(random, 100, drafts), random_tree(random, 5, drafts), random_tree(random, 0, 7)},
                   drafts % 2 == 1);
    const int group = 1 + drafts % 7;
    expect_right<typename TypeParam::space, T>(p.sample<T>({.num_q_heads = 2 * group, .head_dim = 32}), p.sequences,
                                               p.list);
  }
}

// Trees beside sequences whose query tokens have no masks.
TYPED_TEST(Drafts, BesideCausalQueries) {
  using T = typename TypeParam::type;
  std::mt19937 random(4);
  for (const bool cut : {false, true})
    for (const bool contiguous : {false, true}) {
      Drafted causal = random_tree(random, 77, 5), one = random_tree(random, 300, 1);
      causal.masked = one.masked = false;
      DraftProblem p({random_tree(random, 90, 30), causal, random_tree(random, 17, 3), one}, cut, contiguous);
      expect_right<typename TypeParam::space, T>(p.sample<T>({.num_q_heads = 6, .head_dim = 32, .sinks = true}),
                                                 p.sequences, p.list);
    }
}

// A mask hides drafts in decodes that are not causal too.
TYPED_TEST(Drafts, WithoutCausalMask) {
  using T = typename TypeParam::type;
  std::mt19937 random(5);
  const DraftProblem p({random_tree(random, 40, 20)}, false);
  expect_right<typename TypeParam::space, T>(p.sample<T>({.head_dim = 32, .causal = false, .logit_soft_cap = 4}),
                                             p.sequences, p.list);
}

// Tokens that are split over teams, with the drafts in the last part.
TYPED_TEST(Drafts, BehindALongContext) {
  using T = typename TypeParam::type;
  std::mt19937 random(6);
  const DraftProblem p({random_tree(random, 9000, 40)}, false);
  expect_right<typename TypeParam::space, T>(p.sample<T>({.num_q_heads = 2, .num_kv_heads = 1, .head_dim = 16}),
                                             p.sequences, p.list);
}

// A NaN in a draft reaches its descendants and itself, and no other query token.
TYPED_TEST(DraftsOfAnyType, NaNInADraft) {
  using T = typename TypeParam::type;
  if constexpr (facts_of(dtype_v<T>).has_nan && block_dims_v<T> == 0) {
    std::mt19937 random(8);
    for (const bool in_key : {true, false})
      for (const int group : {1, 4}) {
        const DraftProblem p({random_tree(random, 30, 40), random_tree(random, 3, 70)}, true);
        Sample<T> sample = p.sample<T>({.num_q_heads = 2 * group, .head_dim = 32});
        for (const auto& [sequence, draft] : {std::pair(0, 3), {0, 38}, {1, 1}, {1, 69}}) {
          const auto [b, t] = p.sequences.at(sequence, p.trees[sequence].context + draft);
          T* const row      = in_key ? sample.key(b, t, draft % 2) : sample.value(b, t, draft % 2);
          row[5]            = to_element<T>(std::numeric_limits<float>::quiet_NaN());
        }
        int right = 0;
        for (const auto& row : sample.rows()) right += !std::isnan(row.out[5]);
        EXPECT_GT(right, 0);
        EXPECT_LT(right, static_cast<int>(sample.rows().size()));
        expect_right<typename TypeParam::space, T>(sample, p.sequences, p.list);
      }
  }
}

}  // namespace
}  // namespace pagoda::test
