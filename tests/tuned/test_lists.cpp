// SPDX-License-Identifier: Apache-2.0
// The hand-tuned kernels for lists of entries, without a plan, against a float64 reference. Needs a GPU of sm_90, or
// runs their code on a host (simt/).
#include "tests/tuned/list_scene.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace pagoda::tuned {
namespace {

/// The cases of a test that run: on a GPU all of them, on a host, which takes up to a second for each, every fifth.
template <class T>
std::vector<T> some(const std::vector<T>& all) {
  if constexpr (on_gpu) return all;
  std::vector<T> few;
  for (std::size_t i = 1; i < all.size(); i += 5) few.push_back(all[i]);
  return few;
}

class TunedLists : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!Device::current().sm90a) GTEST_SKIP() << "no GPU of sm_90, or no build for it";
  }
  /// Decodes twice: the second decode finds the workspace as the first one left it. On a host, which takes longer, only
  /// each third case of a test; others show by their workspace that they reset it.
  static void expect_right(const ListCase& c) {
    ListScene scene(c);
    expect_right(scene);
    static int cases = 0;
    if (!on_gpu && cases++ % 3 != 0) return;
    const auto first = scene.bits();
    ASSERT_TRUE(scene.decode());
    EXPECT_EQ(scene.bits(), first) << describe(c) << ": another decode has other bits";
  }
  static void expect_right(ListScene& scene) {
    const char* const reason = why_not(scene.problem(), Device::current());
    ASSERT_EQ(std::string(reason ? reason : ""), "");
    ASSERT_TRUE(scene.decode());
    EXPECT_EQ(scene.difference(), "");
  }
  /// Entries of the second sequence, between which is one of all tokens of the first. c.lengths: long and short.
  static void expect_right_with_one_long(ListCase c) {
    c.tokens = 12, c.levels = 1, c.empty = false;
    ListScene scene(c);
    for (Entry& e : scene.list().entries) e.sequence = 1, e.first = 0, e.last = -1;
    scene.list().entries[1].sequence = 0;
    scene.upload_list();
    expect_right(scene);
  }
  /// Each kernel, and groups that do not fill eights: query heads, kv heads, query tokens of an entry, head_dim. With
  /// one query head to a kv head, up to 8 rows run in the warp kernel if an entry has one query token, or hides
  /// nothing. Lists of 9 to 64 rows run in the kernel for many rows and few.
  static std::vector<ListCase> kinds() {
    std::vector<ListCase> all;
    for (const Type type : {Type::fp16, Type::bf16})
      for (const auto& [q_heads, kv_heads, queries, dims] : {std::array{4, 4, 64, 128},
                                                             {8, 2, 16, 128},
                                                             {8, 1, 8, 64},
                                                             {6, 2, 20, 64},
                                                             {2, 2, 128, 128},
                                                             {16, 2, 16, 128},
                                                             {14, 2, 13, 64},
                                                             {3, 3, 1, 128},
                                                             {4, 4, 8, 128},
                                                             {8, 8, 1, 64},
                                                             {16, 16, 5, 64},
                                                             {12, 12, 3, 128},
                                                             {20, 1, 3, 128},
                                                             {8, 2, 31, 64}})
        all.push_back(
            {.type = type, .head_dim = dims, .q_heads = q_heads, .kv_heads = kv_heads, .max_queries = queries});
    return some(all);
  }
  static constexpr std::array byte_types{Type::fp8_e4m3, Type::fp8_e5m2, Type::int8};
};

/// Caches of 8 bits. Up to 8 rows run in the warp kernel with up to four query heads to a kv head.
class ByteLists : public TunedLists, public ::testing::WithParamInterface<Type> {
 protected:
  static std::vector<ListCase> kinds() {
    std::vector<ListCase> all;
    int n = 0;
    for (const auto& [q_heads, kv_heads, queries] : {std::array{4, 4, 64},
                                                     {8, 2, 16},
                                                     {2, 2, 128},
                                                     {14, 2, 13},
                                                     {3, 3, 9},
                                                     {8, 2, 2},
                                                     {8, 1, 1},
                                                     {12, 12, 3},
                                                     {20, 1, 3},
                                                     {8, 2, 31},
                                                     {6, 2, 1},
                                                     {8, 4, 1}}) {  // a host runs it in the warp kernel
      ListCase c{.type = GetParam(), .q_heads = q_heads, .kv_heads = kv_heads, .max_queries = queries};
      c.scales = Scales{n % 3}, c.heads_first = n / 3 % 2 == 1;
      if (n % 4 == 3) c.out_type = Type::bf16, c.state_type = Type::fp16;
      ++n;
      c.lengths = {70, 130, 500, 333, 64, 3, 129, 260}, c.tokens = 90, c.seed = static_cast<unsigned>(n);
      all.push_back(c);
    }
    return some(all);
  }
};
INSTANTIATE_TEST_SUITE_P(Types, ByteLists, ::testing::Values(Type::fp8_e4m3, Type::fp8_e5m2, Type::int8),
                         [](const auto& type) { return std::string(name_of(type.param)); });

TEST_P(ByteLists, RandomForests) {
  for (ListCase c : kinds())
    for (const bool causal : {true, false}) {
      c.causal = causal, c.per_head = !causal;
      expect_right(c);
    }
}
TEST_P(ByteLists, Masks) {
  for (ListCase c : kinds()) {
    c.causal = c.seed % 2 == 0, c.per_head = c.causal, c.masks = true, c.seed += 50;
    expect_right(c);
  }
}
TEST_P(ByteLists, ManyShortEntries) {
  for (const auto& [kv_heads, queries] : some<std::pair<int, int>>({{32, 1}, {8, 4}, {8, 24}})) {
    ListCase c{.type        = GetParam(),
               .q_heads     = 32,
               .kv_heads    = kv_heads,
               .max_queries = queries,
               .scales      = Scales::of_heads,
               .lengths     = std::vector<int>(60, 48)};
    c.tokens = 200, c.levels = 2, c.seed = static_cast<unsigned>(queries);
    c.lengths[3] = 500;
    expect_right(c);
  }
}
// The scale of values multiplies partial results of blocks.
TEST_P(ByteLists, OneLongEntry) {
  for (const auto& [queries, heads] : {std::pair{8, 1}, {100, 2}}) {
    ListCase c{.type        = GetParam(),
               .q_heads     = heads,
               .kv_heads    = heads,
               .max_queries = queries,
               .page_size   = 64,
               .scales      = Scales::of_heads};
    c.lengths = {20000, 40, 70};
    expect_right_with_one_long(c);
  }
}
TEST_P(ByteLists, Sinks) {
  for (ListCase c : kinds()) {
    c.per_head = c.seed % 2 == 0, c.sinks = true, c.seed += 80;
    expect_right(c);
  }
}

// In pages of more tokens than a half of a chain's tile, and of fewer.
TEST_P(ByteLists, Chains) {
  for (ListCase c : kinds()) {
    c.lengths = {70, 1, 100, 133, 64, 3, 129, 40}, c.tokens = 60, c.levels = 1, c.chains = true;
    c.page_size = std::array{8, 256, 64, 24, 32, 16}[c.seed % 6],
    c.place     = c.seed % 5 == 0 ? Place::contiguous : Place::paged;
    c.per_head = c.seed % 2 == 0, c.sinks = c.seed % 3 == 0, c.causal = c.seed % 4 < 2;
    if (c.seed % 4 == 1) c.lengths[1] = 3000, c.entry_tokens = 200;
    expect_right(c);
  }
}

TEST_F(TunedLists, RandomForests) {
  unsigned seed = 0;
  for (ListCase c : kinds()) {
    c.lengths = {70, 1, 500, 333, 64, 3, 129, 260}, c.tokens = 90, c.seed = ++seed;
    for (const bool causal : {true, false}) {
      c.causal = causal, c.per_head = !causal;
      expect_right(c);
    }
  }
}

// Draft tokens with random masks, which cover up to three tiles, beside query tokens without a mask.
TEST_F(TunedLists, Masks) {
  unsigned seed = 50;
  for (ListCase c : kinds()) {
    c.lengths = {70, 130, 500, 333, 64, 3, 129, 260}, c.tokens = 90, c.masks = true, c.seed = ++seed;
    for (const bool causal : {true, false}) {
      c.causal = causal, c.per_head = causal;
      expect_right(c);
    }
  }
}

// Sinks change the results that entries write to the output, also those of entries without tokens. Partial states do
// not have them.
TEST_F(TunedLists, Sinks) {
  unsigned seed = 80;
  for (ListCase c : kinds()) {
    c.lengths = {70, 1, 500, 333, 64, 3, 129, 260}, c.tokens = 90, c.sinks = true, c.seed = ++seed;
    c.per_head = c.seed % 2 == 0;
    expect_right(c);
  }
  // One entry is divided among all blocks.
  ListCase c{.head_dim = 64, .q_heads = 2, .kv_heads = 1, .page_size = 64};
  c.sinks = true, c.lengths = {60000, 40, 70}, c.tokens = 12, c.levels = 1, c.empty = false;
  ListScene scene(c);
  for (Entry& e : scene.list().entries) e.sequence = 0, e.first = 0, e.last = -1;
  scene.upload_list();
  expect_right(scene);
}

// Chains of 2 to 81 entries beside entries that stand alone, of sequences of one tile and of many.
TEST_F(TunedLists, Chains) {
  unsigned seed = 200;
  for (ListCase c : kinds()) {
    c.lengths = {70, 1, 100, 133, 64, 3, 129, 40}, c.tokens = 60, c.levels = 1, c.seed = ++seed, c.chains = true;
    c.per_head = seed % 2 == 0, c.sinks = seed % 3 == 0, c.causal = seed % 4 < 2;
    if (seed % 7 == 0) c.lengths[1] = 3000, c.entry_tokens = 200;
    expect_right(c);
  }
}
// Lists that say that none of their entries has few rows take a kernel without a role for these. Results are right even
// if some have.
TEST_F(TunedLists, WithoutARoleForFewRows) {
  unsigned seed = 400;
  for (ListCase c : kinds()) {
    c.lengths = {70, 1, 100, 133, 64, 3, 129, 40}, c.tokens = 60, c.seed = ++seed, c.few_rows = false;
    c.chains = seed % 2 == 0, c.levels = c.chains ? 1 : 3;
    expect_right(c);
  }
}
// A block looks at some thousands of entries in one pass. Chains begin in one pass and end in the next.
TEST_F(TunedLists, ThousandsOfChains) {
  ListCase c{.head_dim = 64, .q_heads = 2, .kv_heads = 2, .max_queries = 20, .lengths = std::vector<int>(50, 24)};
  c.tokens = 3000, c.levels = 1, c.page_size = 8, c.chains = true;
  expect_right(c);
}
// Infinities and NaNs in values reach the query tokens that see their tokens, and no other ones of a chain.
TEST_F(TunedLists, NonFiniteValuesInChains) {
  for (const auto& [type, kv_heads, queries] : {std::tuple{Type::fp16, 8, 64},
                                                {Type::bf16, 2, 16},
                                                {Type::fp16, 2, 32},
                                                {Type::fp8_e4m3, 2, 16},
                                                {Type::fp8_e5m2, 8, 64}}) {
    ListCase c{.type        = type,
               .kv_heads    = kv_heads,
               .max_queries = queries,
               .lengths     = {70, 65, 200, 133, 64, 3, 129, 60},
               .tokens      = 60,
               .levels      = 1,
               .chains      = true};
    if (std::ranges::find(byte_types, type) != byte_types.end()) c.scales = Scales::of_heads;
    ListScene scene(c);
    for (int s = 0; s < 8; s += 2) {
      scene.set_value(s, c.lengths[static_cast<std::size_t>(s)] / 2, 3, std::numeric_limits<float>::infinity());
      scene.set_value(s, 0, 5, std::numeric_limits<float>::quiet_NaN());
    }
    expect_right(scene);
  }
}

TEST_F(TunedLists, Layouts) {
  unsigned seed = 100;
  for (const Place place : {Place::paged, Place::csr, Place::contiguous})
    for (const int page_size : {8, 24, 64, 256})
      for (const int head_dim : some<int>({64, 128})) {
        ListCase c{.head_dim = head_dim, .q_heads = 6, .kv_heads = 3, .max_queries = 30, .place = place};
        c.page_size = page_size, c.lengths = {700, 0, 33, 260, 5}, c.seed = ++seed;
        c.out_type   = page_size == 8 ? Type::fp32 : page_size == 24 ? Type::bf16 : Type::fp16;
        c.state_type = page_size == 64 ? Type::fp16 : page_size == 256 ? Type::bf16 : Type::fp32;
        c.lse_double = page_size == 24;
        expect_right(c);
        if (head_dim == 64) continue;
        c.type = byte_types[seed % 3], c.scales = Scales{static_cast<int>(seed / 3 % 3)};
        for (const bool heads_first : {false, true}) {
          c.heads_first = heads_first;
          for (const int queries : some<int>({30, 60})) {
            c.max_queries = queries;
            expect_right(c);
          }
        }
      }
}

// More entries than blocks, most of them of a tile or less.
TEST_F(TunedLists, ManyShortEntries) {
  for (const int queries : some<int>({1, 4, 24})) {
    ListCase c{
        .q_heads = 32, .kv_heads = queries == 1 ? 32 : 8, .max_queries = queries, .lengths = std::vector<int>(100, 48)};
    c.tokens = 400, c.levels = 2, c.seed = static_cast<unsigned>(queries);
    c.lengths[3] = 900;
    expect_right(c);
  }
}

// More entries than a block looks at in one pass.
TEST_F(TunedLists, ManyThousandsOfEntries) {
  for (const int head_dim : some<int>({64, 128})) {
    ListCase c{
        .head_dim = head_dim, .q_heads = 1, .kv_heads = 1, .max_queries = 1, .lengths = std::vector<int>(50, 24)};
    c.tokens = 6100, c.levels = on_gpu ? 2 : 1, c.page_size = 8;
    expect_right(c);
  }
}

// One entry of many tiles is divided among all blocks, with short ones before and behind it.
TEST_F(TunedLists, OneLongEntry) {
  for (const int queries : {1, 8, 100})
    for (const int heads : {1, 2}) {
      ListCase c{.head_dim = 64, .q_heads = heads, .kv_heads = heads, .max_queries = queries, .page_size = 64};
      c.lengths = {60000, 40, 70};
      expect_right_with_one_long(c);
    }
}

// Entries of many query rows and of few in one launch, in random order: those of one kind alone, and a long entry of
// each, which several blocks divide.
TEST_F(TunedLists, ManyRowsAndFew) {
  unsigned seed = 150;
  for (const auto& [q_heads, kv_heads, queries, dims] :
       some<std::array<int, 4>>({{4, 4, 64, 128}, {8, 2, 16, 128}, {12, 6, 20, 64}, {16, 2, 8, 128}, {3, 3, 33, 64}}))
    for (const bool causal : {true, false}) {
      ListCase c{.head_dim = dims, .q_heads = q_heads, .kv_heads = kv_heads, .max_queries = queries};
      c.type   = ++seed % 3 == 0 ? Type::bf16 : Type::fp16;
      c.causal = causal, c.seed = seed, c.tokens = 60, c.empty = seed % 2 == 0;
      c.lengths     = {1200, 1500, 64, 3, 129, 260, 1, 333};
      const int few = causal ? 1 : 8 * kv_heads / q_heads;  // query tokens
      ListScene both(c), many(c), only_few(c);
      std::vector<Entry>& entries = both.list().entries;
      Entry& wide                 = *std::ranges::max_element(entries, {}, &Entry::num_queries);
      Entry& narrow = *std::ranges::find_if(entries, [&](const Entry& e) { return e.num_queries > 0 && &e != &wide; });
      wide.sequence = 0, wide.first = 0, wide.last = -1;
      narrow.sequence = 1, narrow.first = 0, narrow.last = -1, narrow.num_queries = 1;
      EXPECT_GT(wide.num_queries, few);
      many.list() = only_few.list() = both.list();
      for (Entry& e : many.list().entries)
        if (e.num_queries <= few) e.num_queries = 0;
      for (Entry& e : only_few.list().entries) e.num_queries = std::min(e.num_queries, few);
      for (ListScene* const scene : {&both, &many, &only_few}) scene->upload_list(), expect_right(*scene);
    }
}

// A single entry, and a list in which no entry has query tokens.
TEST_F(TunedLists, AlmostNothing) {
  ListCase c{.lengths = {1000}, .tokens = 3, .levels = 1, .empty = false};
  ListScene one(c);
  one.list().entries.resize(1), one.upload_list();
  expect_right(one);
  ListScene none(c);
  for (Entry& e : none.list().entries) e.num_queries = 0;
  none.upload_list();
  expect_right(none);
  none.list().entries.clear(), none.upload_list();
  expect_right(none);
}

// One list, while sequences grow on the device.
TEST_F(TunedLists, SequencesGrow) {
  for (const auto& [type, queries] : some<std::pair<Type, int>>(
           {{Type::fp16, 1}, {Type::fp16, 16}, {Type::fp16, 32}, {Type::fp8_e4m3, 32}, {Type::int8, 16}})) {
    ListCase c{.type        = type,
               .kv_heads    = queries == 1 ? 8 : 2,
               .max_queries = queries,
               .lengths     = {70, 1, 500, 333, 64, 0, 129, 260},
               .tokens      = 60};
    c.capacity = 3000;
    ListScene scene(c);
    expect_right(scene);
    for (const int more : {1, 63, 64, 2300}) {
      std::vector<int> lengths = c.lengths;
      for (int& length : lengths) length += more;
      scene.set_lengths(lengths);
      expect_right(scene);
    }
  }
}

// Infinities and NaNs in the newest values reach those queries that see the tokens, and no others.
TEST_F(TunedLists, NonFiniteNewestValues) {
  for (const auto& [type, queries, masks] : {std::tuple{Type::fp16, 16, false},
                                             {Type::fp16, 32, false},
                                             {Type::fp16, 16, true},
                                             {Type::fp16, 32, true},
                                             {Type::fp16, 1, false},
                                             {Type::fp16, 1, true},
                                             {Type::fp8_e4m3, 16, false},
                                             {Type::fp8_e4m3, 32, true},
                                             {Type::fp8_e5m2, 32, false},
                                             {Type::fp8_e5m2, 16, true}}) {
    ListCase c{.type        = type,
               .kv_heads    = queries == 1 ? 8 : 2,
               .max_queries = queries,
               .lengths     = {70, 65, 500, 333, 64, 3, 129, 260},
               .tokens      = 60,
               .masks       = masks};
    ListScene scene(c);
    for (int s = 0; s < 8; ++s) {
      const int newest = c.lengths[static_cast<std::size_t>(s)] - 1;
      scene.set_value(s, newest, 3, std::numeric_limits<float>::infinity());
      scene.set_value(s, newest - 1, 5, std::numeric_limits<float>::quiet_NaN());
    }
    expect_right(scene);
  }
}

// Running maxima rise in later tiles, which rescales what earlier tiles have added.
TEST_F(TunedLists, RisingMaxima) {
  for (const Type type : {Type::fp16, Type::bf16, Type::fp8_e4m3, Type::fp8_e5m2, Type::int8})
    for (const int queries : some<int>({1, 16, 32})) {
      ListCase c{.type        = type,
                 .kv_heads    = queries == 1 ? 8 : 2,
                 .max_queries = queries,
                 .lengths     = {700, 65, 500, 333, 64, 3, 600, 260}};
      c.rising = true;
      expect_right(c);
    }
}

// A kv head may have scales of 0, as one whose keys or values are all 0.
TEST_F(TunedLists, ScalesOfZero) {
  for (const Type type : byte_types)
    for (const int queries : {2, 16, 32}) {
      ListCase c{.type        = type,
                 .max_queries = queries,
                 .scales      = Scales::of_heads,
                 .lengths     = {70, 65, 500, 333, 64, 3, 129, 260},
                 .masks       = queries > 2};
      ListScene scene(c);
      scene.set_scales(0, 0, 1), scene.set_scales(1, 1, 0);
      expect_right(scene);
    }
}

TEST_F(TunedLists, Refusals) {
  const Device device = Device::current();
  ListCase c{.lengths = {100}};
  const auto reason = [&](const Problem& p) {
    const char* const text = why_not(p, device);
    return std::string(text ? text : "");
  };
  const Problem good = ListScene(c).problem();
  ASSERT_EQ(reason(good), "");
  Problem p      = good;
  p.max_q_tokens = 33;
  EXPECT_EQ(reason(p), "more than 128 query heads and tokens share a kv head");
  p      = good;
  p.type = Type::fp32;
  EXPECT_EQ(reason(p),
            "a list of entries, with keys and values that are not of 64 (not of 8 bits) or 128 dims in 8 or 16 bits");
  p      = good;
  p.type = Type::int4;
  EXPECT_EQ(reason(p),
            "a list of entries, with keys and values that are not of 64 (not of 8 bits) or 128 dims in 8 or 16 bits");
  for (const int queries : {2, 16}) {  // of each kernel
    ListCase bytes{.type = Type::fp8_e4m3, .max_queries = queries, .scales = Scales::of_heads, .causal = false};
    bytes.lengths        = {100};
    const Problem scaled = ListScene(bytes).problem();
    ASSERT_EQ(reason(scaled), "");
    p               = scaled;
    p.k.scale_token = 2;
    EXPECT_EQ(reason(p), "scales of single tokens, with a list of entries");
    p               = scaled;
    p.v.scale_token = 2;
    EXPECT_EQ(reason(p), "scales of single tokens, with a list of entries");
    p          = scaled;
    p.head_dim = p.head_dim_v = 64;
    EXPECT_EQ(reason(p),
              "a list of entries, with keys and values that are not of 64 (not of 8 bits) or 128 dims in 8 or 16 bits");
    p              = scaled;
    p.max_q_tokens = 33;
    EXPECT_EQ(reason(p), "more than 128 query heads and tokens share a kv head");
  }
  p          = good;
  p.head_dim = 576, p.head_dim_v = 512;
  EXPECT_EQ(reason(p), "a list of entries, with a latent cache");
  p                           = good;
  alignas(16) float states[4] = {};  // nothing is written to them
  p.list.state_out            = {states, Type::fp32, 4 * 128 + 1, 128};
  p.list.state_lse.data       = states;
  EXPECT_EQ(reason(p), "rows of partial states do not start on 16 bytes");
}

}  // namespace
}  // namespace pagoda::tuned
