// SPDX-License-Identifier: Apache-2.0
// Lists of shared prefixes against the reference, which sees each sequence whole.
#include "tests/entries/forests.hpp"

#include <functional>
#include <numeric>
#include <random>

namespace pagoda::test {
namespace {

using AllTypes = lists::Join<SpacesAndTypes, SpacesAndQuantizedTypes>::type;

template <class Param>
struct Forests : testing::Test {};
TYPED_TEST_SUITE(Forests, SpacesAndTypes, Names);

template <class Param>
struct ForestsOfAnyType : testing::Test {};
TYPED_TEST_SUITE(ForestsOfAnyType, AllTypes, Names);

template <class T>
Sample<T> sample_of(const Forest& f, const Shape& options) {
  Sample<T> sample(f.sequences.shape(options, f.query_tokens()));
  sample.set_sight(f.sight(options.causal, f.sequences.lengths));
  return sample;
}

/// A random batch with query tokens; its list has shared entries or not.
Forest random_forest(std::mt19937& random) {
  for (;;) {
    PrefixBatch batch = random_batch(random, 7, 12);
    Forest f          = forest_of(batch);
    if (f.query_tokens() > 0) return f;
  }
}

/// Eight sequences: a common root of three pages, two branches of two pages, and a page or two of their own.
PrefixBatch two_branches(int query_len) {
  PrefixBatch batch;
  for (int b = 0; b < 8; ++b) {
    batch.rows.push_back({0, 1, 2, 10 + b / 4, 20 + b / 4, 100 + b, 200 + b});
    batch.seq_lens.push_back(16 * 5 + 7 + 3 * b);
  }
  batch.query_len = query_len;
  return batch;
}

TYPED_TEST(ForestsOfAnyType, RandomBatches) {
  using T = typename TypeParam::type;
  std::mt19937 random(7);
  int shared = 0;
  for (int round = 0; round < 12; ++round) {
    const Forest f = random_forest(random);
    shared += f.list.num_states() > 0;
    Shape options{.num_q_heads = 2 * (1 + round % 5), .head_dim = round % 2 ? 32 : 64, .causal = round % 3 != 2};
    options.sinks = round % 2 == 1, options.alibi = round % 4 == 2, options.logit_soft_cap = round % 5 == 3 ? 5 : 0;
    expect_right<typename TypeParam::space, T>(
        sample_of<T>(f, options), f.sequences, f.list,
        {.layout = round % 2 ? Layout::csr : Layout::paged, .order = round % 4 < 2 ? KVOrder::NHD : KVOrder::HND});
  }
  EXPECT_GT(shared, 4);
}

TYPED_TEST(Forests, ATreeOfThreeLevels) {
  using T = typename TypeParam::type;
  for (const int query_len : {1, 3}) {
    PrefixBatch batch = two_branches(query_len);
    const Forest f    = forest_of(batch);
    EXPECT_EQ(f.list.num_states(), 3 * f.query_tokens());
    for (const int group : {1, 4, 7, 16})
      expect_right<typename TypeParam::space, T>(sample_of<T>(f, {.num_q_heads = 2 * group, .head_dim = 32}),
                                                 f.sequences, f.list);
  }
}

TYPED_TEST(Forests, Options) {
  using T           = typename TypeParam::type;
  PrefixBatch batch = two_branches(2);
  const Forest f    = forest_of(batch);
  using Change      = std::function<void(Shape&)>;
  for (const Change& change : std::vector<Change>{
           [](Shape& s) { s.sinks = true; }, [](Shape& s) { s.alibi = true; }, [](Shape& s) { s.logit_soft_cap = 3; },
           [](Shape& s) { s.causal = false; }, [](Shape& s) { s.softmax_scale = -0.3; },
           [](Shape& s) { s.score_shift = 500; }, [](Shape& s) { s.sinks = s.alibi = true, s.logit_soft_cap = 3; }}) {
    Shape options{.num_q_heads = 6, .head_dim = 32};
    change(options);
    expect_right<typename TypeParam::space, T>(sample_of<T>(f, options), f.sequences, f.list);
  }
}

TYPED_TEST(Forests, ShapesOfRows) {
  using T           = typename TypeParam::type;
  PrefixBatch batch = two_branches(2);
  const Forest f    = forest_of(batch);
  for (const int dim : {8, 33, 64, 100, 128, 256})
    expect_right<typename TypeParam::space, T>(sample_of<T>(f, {.head_dim = dim}), f.sequences, f.list);
  expect_right<typename TypeParam::space, T>(sample_of<T>(f, {.head_dim = 64, .head_dim_v = 32}), f.sequences, f.list);
  expect_right<typename TypeParam::space, T>(
      sample_of<T>(f,
                   {.num_q_heads = 16, .num_kv_heads = 1, .head_dim = 576, .head_dim_v = 512, .values_in_keys = true}),
      f.sequences, f.list);
}

TYPED_TEST(Forests, StridesAndTypesOfRows) {
  using T              = typename TypeParam::type;
  PrefixBatch batch    = two_branches(2);
  const Forest f       = forest_of(batch);
  const Sample<T> rows = sample_of<T>(f, {.num_q_heads = 6, .head_dim = 32, .q_type = DType::fp32});
  for (const Strides strides : {Strides::padded, Strides::left})
    expect_right<typename TypeParam::space, T>(
        rows, f.sequences, f.list, {.layout = Layout::paged, .strides = strides, .io = strides}, {.states = strides});
  for (const DType type : {DType::fp64, DType::fp32, DType::fp16, DType::bf16})
    for (const DType lse : {DType::fp32, DType::fp64}) {
      ListOptions options{.state_type = type, .state_lse_type = lse};
      const bool wide = type == DType::fp64 || type == DType::fp32;
      expect_right<typename TypeParam::space, T>(
          rows, f.sequences, f.list, {.layout = Layout::paged, .out_type = wide ? dtype_v<T> : type, .lse_type = lse},
          options);
    }
}

TYPED_TEST(Forests, PageSizes) {
  using T = typename TypeParam::type;
  for (const int page_size : {1, 5, 16, 64, 128}) {
    PrefixBatch batch = two_branches(2);
    batch.page_size   = page_size;
    for (int b = 0; b < 8; ++b) batch.seq_lens[b] = 6 * page_size + (b % 2) * std::min(2, page_size - 1);
    const Forest f = forest_of(batch);
    EXPECT_GT(f.list.num_states(), 0);
    expect_right<typename TypeParam::space, T>(sample_of<T>(f, {.head_dim = 32}), f.sequences, f.list);
  }
}

// A contiguous cache, whose sequences are read in ranges.
TYPED_TEST(Forests, RangesOfContiguousSequences) {
  using T = typename TypeParam::type;
  Sequences sequences{.lengths = {300, 0, 77, 5}, .contiguous = true};
  EntryList list;
  list.state_begin = {0};
  Forest f{sequences, {}, {}, {}};
  for (int s = 0; s < 4; ++s) {
    const int begin = static_cast<int>(list.queries.size());
    for (int i = 0; i < 2; ++i) {
      f.sequence_of.push_back(s), f.behind.push_back(2 - i);
      list.queries.push_back({static_cast<int>(list.queries.size()), s, 2 - i});
    }
    const int cut = sequences.lengths[s] / 3;
    if (s % 2 == 0) {
      list.entries.push_back({s, 0, cut, begin, 2, 0});
      list.entries.push_back({s, cut, 2 * cut, begin, 2, 1});
      list.entries.push_back({s, 2 * cut, -1, begin, 2, 2});
    } else {
      list.entries.push_back({s, 0, -1, begin, 2, -1});
    }
    for (int i = 0; i < 2; ++i) list.state_begin.push_back(list.state_begin.back() + (s % 2 == 0 ? 3 : 0));
  }
  list.max_queries = 2;
  f.list           = list;
  for (const bool sinks : {false, true})
    expect_right<typename TypeParam::space, T>(sample_of<T>(f, {.head_dim = 32, .sinks = sinks}), sequences, list);
}

// Rows of an entry are split, and with many splits joined states are joined again.
TYPED_TEST(Forests, LongEntries) {
  using T = typename TypeParam::type;
  std::vector<int> prefix(65000 / 64);
  std::iota(prefix.begin(), prefix.end(), 0);
  PrefixBatch batch;
  batch.page_size = 64, batch.rows = {prefix, prefix};
  for (int b = 0; b < 2; ++b) {
    for (int i = 0; i < 1000; ++i) batch.rows[b].push_back(2000 + 1000 * b + i);
    batch.seq_lens.push_back(64 * static_cast<int>(batch.rows[b].size()) - 11 * b);
  }
  const Forest f = forest_of(batch);
  ASSERT_EQ(f.list.num_states(), 4);
  const Sample<T> sample = sample_of<T>(f, {.num_q_heads = 2, .num_kv_heads = 1, .head_dim = 16});
  expect_right<typename TypeParam::space, T>(sample, f.sequences, f.list);
  expect_right<typename TypeParam::space, T>(sample, f.sequences, f.sequences.plain_list({1, 1}));
}

// Sequences grow and the list on the device stays: entries end where the lengths say.
TYPED_TEST(Forests, SequencesThatGrow) {
  using T           = typename TypeParam::type;
  using Space       = typename TypeParam::space;
  PrefixBatch batch = two_branches(2);
  const Forest f    = forest_of(batch);
  auto lengths      = f.sequences.lengths;
  Sample<T> longest(f.sequences.shape({.head_dim = 32}, f.query_tokens()));
  Sequences grown = f.sequences;
  for (std::size_t b = 0; b < lengths.size(); ++b) grown.lengths[b] = 7 * 16;
  longest.set_sight(f.sight(true, grown.lengths));
  ListScene<Space, T> scene(longest, grown);
  const auto list    = on_device(scene.exec(), f.list);
  const auto problem = scene.problem(list, f.list.num_states());
  const auto plan    = scene.plan(bounds_of(f.list));
  for (const int more : {0, 1, 5, 16}) {
    auto now = lengths;
    for (int& n : now) n = std::min(n + more, 7 * 16);
    scene.set_lengths(now);
    scene.scene().poison_outputs();
    Sample<T> sample(f.sequences.shape({.head_dim = 32}, f.query_tokens()));
    sample.set_sight(f.sight(true, now));
    scene.decode(plan, problem);
    EXPECT_TRUE(scene.right(sample)) << more << " tokens more";
  }
}

// Entries without query tokens do nothing, and query tokens of no entry keep their outputs.
TYPED_TEST(Forests, EntriesAndQueryTokensWithoutWork) {
  using T           = typename TypeParam::type;
  PrefixBatch batch = two_branches(2);
  Forest f          = forest_of(batch);
  const int n       = f.query_tokens();
  for (Entry& e : f.list.entries)  // sequence 3 is not decoded
    if (e.last < 0 && e.sequence == 3) e.num_queries = 0;
  f.list.entries.insert(f.list.entries.begin(), {99, 1 << 30, -1, 1 << 30, 0, -1});
  f.list.entries.push_back({-1, 0, 0, 0, 0, 5});
  std::vector<int> begin{0};
  for (int t = 0; t < n; ++t) begin.push_back(begin.back() + 3);
  EXPECT_EQ(f.list.state_begin, begin);
  // The states of sequence 3 stay poison in part, so the merge gives NaN there, as an untouched output is.
  Sample<T> sample(f.sequences.shape({.head_dim = 32}, n));
  const auto whole = f.sight(true, f.sequences.lengths);
  sample.set_sight([&](int token, int head) { return f.sequence_of[token] == 3 ? std::nullopt : whole(token, head); });
  expect_right<typename TypeParam::space, T>(sample, f.sequences, f.list, {.layout = Layout::paged},
                                             {.spare_entries = 100});

  // Without states nothing is written there at all.
  EntryList plain              = f.sequences.plain_list(std::vector<int>(8, 2));
  plain.entries[3].num_queries = 0;
  expect_right<typename TypeParam::space, T>(sample, f.sequences, plain);
}

TYPED_TEST(Forests, NoEntries) {
  using T = typename TypeParam::type;
  Sequences sequences{.rows = {{0}}, .lengths = {5}};
  Sample<T> sample(sequences.shape({}, 2));
  sample.set_sight([](int, int) { return std::nullopt; });
  expect_right<typename TypeParam::space, T>(sample, sequences, {});
}

// A tolerance that would hide a token that is left out would hide an error of the list.
TYPED_TEST(Forests, AMissingTokenIsFound) {
  using T                = typename TypeParam::type;
  using Space            = typename TypeParam::space;
  PrefixBatch batch      = two_branches(1);
  const Forest f         = forest_of(batch);
  const Sample<T> sample = sample_of<T>(f, {.head_dim = 64});
  ListScene<Space, T> scene(sample, f.sequences);
  const auto list = on_device(scene.exec(), f.list);
  scene.decode(scene.plan(bounds_of(f.list)), scene.problem(list, f.list.num_states()));
  EXPECT_TRUE(scene.right());
  const auto whole = f.sight(true, f.sequences.lengths);
  for (const int missing : {0, 50, 70, 80}) {
    Sample<T> other(sample.shape());
    other.set_sight([&](int token, int head) {
      auto sight = whole(token, head);
      sight->tokens.erase(sight->tokens.begin() + missing);
      return sight;
    });
    EXPECT_FALSE(scene.right(other)) << "token " << missing;
  }
}

}  // namespace
}  // namespace pagoda::test
