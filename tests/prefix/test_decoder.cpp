// SPDX-License-Identifier: Apache-2.0
// PrefixDecoder: the same results as plain decodes, whatever comes and goes.
#include "tests/prefix/engine.hpp"
#include "tests/support/refusal.hpp"
#include "tests/support/spaces.hpp"

#include <pagoda/prefix.hpp>

#include "src/dispatch/prefix_state.hpp"

#include <cstring>
#include <optional>
#include <set>
#include <string>
#include <thread>

namespace pagoda::test {
namespace {

/// Rates with which sharing of any page pays.
DeviceRates any_page_pays() {
  DeviceRates d;
  d.list_us = d.item_us = 0;
  d.state_bytes_per_us *= 100;
  return d;
}

template <class Space, class T>
struct DecoderFixture : testing::Test {
  using Server  = Engine<Space, T>;
  using LseRows = typename Server::Lse;

  static auto options() {
    return DecodeOptions<typename Space::memory_space>{.num_q_heads = Server::q_heads,
                                                       .max_batch   = Server::max_sequences};
  }
  static LseRows lse() { return LseRows("lse", Server::max_tokens, Server::q_heads); }

  /// Updates, decodes and compares with the reference.
  static void expect_right_step(Server& engine, PrefixDecoder<Space>& decoder, const std::vector<float>& sinks = {},
                                double leeway = 1) {
    const auto out  = engine.outputs();
    const LseRows l = lse();
    const int n     = engine.tokens();
    decoder.update(engine.exec(), engine.tables());
    decoder.decode(engine.exec(), engine.queries(), engine.kv(), Server::first(out, n),
                   LseRows(l.data(), n, Server::q_heads));
    engine.exec().fence();
    engine.expect_right(out, l, sinks, leeway);
  }
};

template <class Space>
struct PrefixDecoderTest : DecoderFixture<Space, AnyType> {};
TYPED_TEST_SUITE(PrefixDecoderTest, Spaces);

template <class Param>
struct PrefixDecoderOfAnyType : DecoderFixture<typename Param::space, typename Param::type> {};
TYPED_TEST_SUITE(PrefixDecoderOfAnyType, SpacesAndTypes, Names);

TYPED_TEST(PrefixDecoderTest, RandomSteps) {
  using Bench = typename TestFixture::Server;
  int packed = 0, plain = 0, kept = 0;
  for (unsigned seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Bench engine(seed);
    const bool ragged = seed % 3 == 2;
    auto options      = this->options();
    std::vector<float> sinks;
    engine.query_len = options.max_query_len = seed % 3 == 1 ? 3 : 1;
    if (ragged) options.max_query_len = 4;
    if (seed >= 3) {
      const Kokkos::View<float*, typename TypeParam::memory_space> on_device("sinks", Bench::q_heads);
      sinks = {0.5f, -1, 2, 3};
      Kokkos::deep_copy(on_device, Kokkos::View<const float*, Kokkos::HostSpace>(sinks.data(), sinks.size()));
      options.sinks = on_device;
    }
    // States of 16 bits round more than the tolerance of outputs of 32 bits allows.
    const bool halves = seed % 2 == 1 && sizeof(typename Bench::Rows::value_type) == 2;
    std::optional<DType> state_type;
    if (seed % 3 != 0) state_type = halves ? DType::fp16 : DType::fp32;
    engine.step(1);
    if (ragged) {  // room for later counts; each step sets them
      engine.cu_seqlens        = {0};
      options.cu_seqlens_q     = engine.device_cu_seqlens();
      options.max_query_tokens = Bench::max_tokens;
    }
    PrefixDecoder<TypeParam> decoder(engine.exec(), engine.kv(), options,
                                     {.state_type = state_type, .rates = any_page_pays()});
    for (int step = 0; step < 40; ++step) {
      if (step % 4 != 1) engine.step(engine.query_len);
      if (step % 4 == 1)  // growth alone, which rarely fills a page
        for (const int slot : engine.batch)
          if (engine.length(slot) % engine.page_size + engine.query_len < engine.page_size)
            engine.grow(slot, engine.query_len);
      if (ragged) {
        engine.cu_seqlens = {0};
        for (const int slot : engine.batch)
          engine.cu_seqlens.push_back(engine.cu_seqlens.back() +
                                      engine.up_to(std::min({2, engine.length(slot), engine.up_to(1) * 2})));
        const auto now = engine.device_cu_seqlens();
        Kokkos::deep_copy(Kokkos::View<int*, typename TypeParam::memory_space>(
                              const_cast<int*>(options.cu_seqlens_q.data()), now.extent(0)),
                          now);
      }
      this->expect_right_step(engine, decoder, sinks, state_type == DType::fp32 ? 1 : 2);
      if (testing::Test::HasFatalFailure()) return;
      ++(decoder.packed() ? packed : plain);
      kept += !decoder.report().new_plan;
      EXPECT_EQ(decoder.packed(), decoder.report().plain_because == nullptr);
      EXPECT_EQ(decoder.graph_key() != 0, decoder.packed());
    }
  }
  EXPECT_GT(packed, 80);
  EXPECT_GT(plain, 2);
  EXPECT_GT(kept, 20);
}

TYPED_TEST(PrefixDecoderTest, GrowthKeepsThePlan) {
  typename TestFixture::Server engine(1);
  engine.two_branches();
  PrefixDecoder<TypeParam> decoder(engine.exec(), engine.kv(), this->options(), {.rates = any_page_pays()});
  this->expect_right_step(engine, decoder);
  ASSERT_TRUE(decoder.packed());
  EXPECT_TRUE(decoder.report().new_plan);
  EXPECT_GT(decoder.report().states, 0);
  EXPECT_GT(decoder.report().planning_us, 0);
  EXPECT_LT(decoder.report().packed_us, decoder.report().plain_us);
  for (int step = 0; step < 40; ++step) {
    for (const int slot : engine.batch) engine.grow(slot, 1);
    this->expect_right_step(engine, decoder);
    EXPECT_TRUE(decoder.packed());
    EXPECT_FALSE(decoder.report().new_plan);
  }
  // A sequence leaves, and another one takes its slot: as long as the one before, with other pages.
  const int slot = engine.batch.back(), length = engine.length(slot);
  engine.finish(slot);
  ASSERT_EQ(engine.admit(slot, 0, length), slot);
  this->expect_right_step(engine, decoder);
  EXPECT_TRUE(decoder.report().new_plan);
}

// A sequence that ends within a page of another one grows to its end, and beyond it.
TYPED_TEST(PrefixDecoderTest, GrowthWithinASharedPage) {
  typename TestFixture::Server engine(9);
  engine.admit(0, 0, 6 * engine.page_size + 5);
  engine.admit(engine.batch[0], 6, 0);
  engine.admit(engine.batch[0], 4, engine.page_size);
  engine.shorten(engine.batch[1], 9);
  PrefixDecoder<TypeParam> decoder(engine.exec(), engine.kv(), this->options(), {.rates = any_page_pays()});
  for (int length = 6 * engine.page_size - 9; length <= 6 * engine.page_size + 2; ++length) {
    this->expect_right_step(engine, decoder);
    EXPECT_TRUE(decoder.packed());
    for (const int slot : engine.batch) engine.grow(slot, 1);
  }
}

// On a GPU, the row of a long entry is divided into more splits than are joined at once.
TYPED_TEST(PrefixDecoderTest, LongPrefixes) {
  typename TestFixture::Server engine(10, 64, 300, 320);
  engine.admit(0, 0, 280 * engine.page_size);
  engine.admit(engine.batch[0], 280, 3), engine.admit(engine.batch[0], 279, engine.page_size + 1);
  PrefixDecoder<TypeParam> decoder(engine.exec(), engine.kv(), this->options(), {.rates = any_page_pays()});
  this->expect_right_step(engine, decoder);
  EXPECT_TRUE(decoder.packed());
}

TYPED_TEST(PrefixDecoderOfAnyType, PageSizes) {
  for (const int page_size : {1, 5, 64}) {
    typename TestFixture::Server engine(static_cast<unsigned>(page_size), page_size, 60);
    engine.two_branches();
    PrefixDecoder<typename TypeParam::space> decoder(engine.exec(), engine.kv(), this->options(),
                                                     {.rates = any_page_pays()});
    for (int step = 0; step < 8; ++step) {
      this->expect_right_step(engine, decoder);
      EXPECT_EQ(decoder.packed(), dtype_v<typename TypeParam::type> != DType::fp64) << "pages of " << page_size;
      for (const int slot : engine.batch) engine.grow(slot, 1);
      if (step == 4) engine.finish(engine.batch[3]);
    }
  }
}

// On GPUs partial states have the type of the outputs, if that has 16 bits, otherwise fp32. The rates price all types
// alike, so that all decodes read the same list.
TYPED_TEST(PrefixDecoderOfAnyType, TypesOfStates) {
  using Space  = typename TypeParam::space;
  using Server = typename TestFixture::Server;
  if (dtype_v<typename TypeParam::type> == DType::fp64) return;  // decoded plainly
  Server engine(12);
  engine.two_branches();
  DeviceRates rates        = any_page_pays();
  rates.state_bytes_per_us = 1e30;
  const auto decoded       = [&]<class Out>(Out, std::optional<DType> state_type) {
    PrefixDecoder<Space> decoder(engine.exec(), engine.kv(), this->options(),
                                       {.state_type = state_type, .rates = rates});
    const Kokkos::View<Out***, Kokkos::LayoutRight, typename Space::memory_space> out("out", engine.tokens(),
                                                                                            Server::q_heads, Server::dim);
    decoder.update(engine.exec(), engine.tables());
    EXPECT_GT(decoder.report().states, 0);
    decoder.decode(engine.exec(), engine.queries(), engine.kv(), out);
    engine.exec().fence();
    const auto on_host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), out);
    return std::vector<Out>(on_host.data(), on_host.data() + on_host.size());
  };
  const auto differ = [](const auto& a, const auto& b) {
    return std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) != 0;
  };
  const auto expect = [&]<class Out>(Out kind, DType usual) {
    SCOPED_TRACE(testing::Message() << "outputs of " << name_of(dtype_v<Out>));
    const auto out = decoded(kind, {});
    for (const DType type : {DType::fp32, DType::fp16, DType::bf16})
      EXPECT_EQ(differ(out, decoded(kind, type)), type != usual) << "states of " << name_of(type);
  };
  const bool on_host = std::is_same_v<typename Space::memory_space, Kokkos::HostSpace>;
  expect(float(), DType::fp32), expect(half_t(), on_host ? DType::fp32 : DType::fp16);
  expect(bfloat16_t(), on_host ? DType::fp32 : DType::bf16);
}

// Log-sum-exps begin where a float may, also behind an odd number of elements of 16 bits.
TEST(StateLayout, OddRows) {
  const detail::PrefixBounds bounds{.max_batch = 1, .max_query_tokens = 1, .max_entries = 1, .max_states = 3};
  const detail::DecodeHeads heads{.num_q_heads = 3, .num_kv_heads = 1, .head_dim = 5, .head_dim_v = 5};
  const detail::StateLayout layout(bounds, heads, DType::fp16);
  EXPECT_GE(layout.lse, 3u * 3 * 5 * 2);
  EXPECT_EQ(layout.lse % alignof(float), 0u);
  EXPECT_EQ(layout.bytes, layout.lse + 3 * 3 * sizeof(float));
}

TYPED_TEST(PrefixDecoderTest, ABatchThatBeginsToShare) {
  using Bench = typename TestFixture::Server;
  Bench engine(2);
  for (int i = 0; i < 4; ++i) engine.admit(0, 0, 6 * engine.page_size);
  PrefixDecoder<TypeParam> decoder(engine.exec(), engine.kv(), this->options(), {.rates = any_page_pays()});
  this->expect_right_step(engine, decoder);
  EXPECT_EQ(std::string(decoder.report().plain_because), "no page is shared");
  EXPECT_EQ(decoder.graph_key(), 0u);
  // The same slots and lengths; all but one now begin with its pages.
  for (int i = 0; i < 3; ++i) engine.finish(engine.batch.back());
  for (int i = 0; i < 3; ++i) engine.admit(engine.batch[0], 5, engine.page_size);
  this->expect_right_step(engine, decoder);
  EXPECT_TRUE(decoder.packed());
  // Packing no longer pays.
  DeviceRates slow = any_page_pays();
  slow.list_us     = 1e9;
  decoder.set_rates(slow);
  this->expect_right_step(engine, decoder);
  EXPECT_FALSE(decoder.packed());
  EXPECT_EQ(std::string(decoder.report().plain_because), "reading shared pages once is predicted to take longer");
  EXPECT_GT(decoder.report().packed_us, 1e9);
}

TYPED_TEST(PrefixDecoderTest, ListsBeyondTheBoundsAreDecodedPlainly) {
  typename TestFixture::Server engine(3);
  engine.two_branches();
  const auto because = [&](const PrefixOptions& bounds) {
    PrefixDecoder<TypeParam> decoder(engine.exec(), engine.kv(), this->options(), bounds);
    this->expect_right_step(engine, decoder);
    EXPECT_FALSE(decoder.packed());
    return std::string(decoder.report().plain_because);
  };
  EXPECT_EQ(because({.max_entries = 3, .rates = any_page_pays()}), "the list has more than max_entries entries");
  EXPECT_EQ(because({.max_states = 3, .rates = any_page_pays()}), "the list has more than max_states partial states");

  // A smaller list that fits takes over, and gives way again.
  PrefixDecoder<TypeParam> decoder(engine.exec(), engine.kv(), this->options(),
                                   {.max_entries = 3, .rates = any_page_pays()});
  std::vector<int> all = engine.batch;
  engine.batch         = {all[0], all[1]};
  for (int i = 0; i < 3; ++i) {
    this->expect_right_step(engine, decoder);
    EXPECT_TRUE(decoder.packed());
    std::swap(engine.batch, all);
    this->expect_right_step(engine, decoder);
    EXPECT_FALSE(decoder.packed());
    std::swap(engine.batch, all);
  }
}

/// Lists follow each other without a fence, so their copies overlap later planning.
TYPED_TEST(PrefixDecoderTest, StagingIsReused) {
  using Bench          = typename TestFixture::Server;
  using Lse            = typename TestFixture::LseRows;
  constexpr int rounds = 12;
  Bench engine(4);
  engine.two_branches();
  PrefixDecoder<TypeParam> decoder(engine.exec(), engine.kv(), this->options(), {.rates = any_page_pays()});
  const std::vector<int> all = engine.batch;
  std::vector<std::vector<int>> batches;
  std::vector<typename Bench::Rows> outs;
  std::vector<Lse> lses;
  std::vector<PagedKV<AnyType, typename TypeParam::memory_space>> caches;
  for (int i = 0; i < rounds; ++i) {
    batches.push_back(all);
    std::rotate(batches[i].begin(), batches[i].begin() + i % 5, batches[i].end());
    if (i % 3 == 1) batches[i].pop_back();
    engine.batch = batches[i];
    outs.push_back(engine.outputs()), lses.push_back(this->lse()), caches.push_back(engine.kv());
  }
  engine.exec().fence();
  for (int i = 0; i < rounds; ++i) {
    engine.batch = batches[i];
    const int n  = engine.tokens();
    ASSERT_TRUE(decoder.update(engine.exec(), engine.tables()));
    EXPECT_TRUE(decoder.report().new_plan);
    decoder.decode(engine.exec(), engine.queries(), caches[i], Bench::first(outs[i], n),
                   Lse(lses[i].data(), n, Bench::q_heads));
  }
  engine.exec().fence();
  for (int i = 0; i < rounds; ++i) {
    engine.batch = batches[i];
    engine.expect_right(outs[i], lses[i]);
  }
}

TYPED_TEST(PrefixDecoderTest, PlansOnAnotherThread) {
  using Bench = typename TestFixture::Server;
  using Lse   = typename TestFixture::LseRows;
  Bench engine(5);
  engine.two_branches();
  PrefixDecoder<TypeParam> decoder(engine.exec(), engine.kv(), this->options(), {.rates = any_page_pays()});
  ASSERT_TRUE(decoder.update(engine.exec(), engine.tables()));
  for (int round = 0; round < 10; ++round) {
    const auto out = engine.outputs();
    const Lse lse  = this->lse();
    const auto kv  = engine.kv();
    const int n    = engine.tokens();
    auto next      = engine.batch;  // the batch of the next step
    std::rotate(next.begin(), next.begin() + 1, next.end());
    BatchPages tables   = engine.tables();
    tables.sequence_ids = next.data();
    bool install        = false;
    std::thread planner([&] { install = decoder.plan(tables); });
    for (int i = 0; i < 5; ++i)
      decoder.decode(engine.exec(), engine.queries(), kv, Bench::first(out, n), Lse(lse.data(), n, Bench::q_heads));
    planner.join();
    engine.exec().fence();
    engine.expect_right(out, lse);
    if (testing::Test::HasFatalFailure()) return;
    EXPECT_TRUE(install);
    EXPECT_TRUE(decoder.install(engine.exec()));
    engine.batch = next;
  }
  this->expect_right_step(engine, decoder);
  EXPECT_FALSE(decoder.report().new_plan);
}

TYPED_TEST(PrefixDecoderTest, SomeDecodesAreAlwaysPlainAndRefuseListPlans) {
  using Bench = typename TestFixture::Server;
  using T     = AnyType;
  Bench engine(6);
  engine.two_branches();
  auto options        = this->options();
  options.window_left = 20;
  PrefixDecoder<TypeParam> decoder(engine.exec(), engine.kv(), options, {.rates = any_page_pays()});
  EXPECT_FALSE(decoder.update(engine.exec(), engine.tables()));
  EXPECT_NE(std::string(decoder.report().plain_because).find("sliding window"), std::string::npos);
  expect_refusal([&] { decoder.list_plan(); }, {"pagoda::PrefixDecoder::list_plan", "sliding window"});

  const auto rows = make_contiguous_cache<T>(
      engine.exec(), {.num_sequences = 2, .max_seq_len = 32, .num_kv_heads = 2, .head_dim = Bench::dim});
  const Kokkos::View<int*, typename TypeParam::memory_space> lengths("lengths", 2);
  const ContiguousKV kv{rows.k, rows.v, lengths, rows.order};
  PrefixDecoder<TypeParam> contiguous(engine.exec(), kv, {.num_q_heads = Bench::q_heads});
  const std::vector<int> two = {0, 0};
  BatchPages none;
  none.batch = none.num_sequences = 2, none.seq_lens = two.data();
  EXPECT_FALSE(contiguous.update(engine.exec(), none));
  EXPECT_EQ(std::string(contiguous.report().plain_because), "the cache is contiguous");
  const auto out = engine.outputs();
  contiguous.decode(engine.exec(), Bench::first(engine.q, 2), kv, Bench::first(out, 2));
  engine.exec().fence();
}

TYPED_TEST(PrefixDecoderTest, GraphKeysAreFew) {
  typename TestFixture::Server engine(7);
  engine.two_branches();
  PrefixDecoder<TypeParam> decoder(engine.exec(), engine.kv(), this->options(), {.rates = any_page_pays()});
  std::set<std::uint64_t> keys;
  for (int i = 0; i < 5; ++i) {  // other lists for a batch of the same size
    std::rotate(engine.batch.begin(), engine.batch.begin() + 1, engine.batch.end());
    ASSERT_TRUE(decoder.update(engine.exec(), engine.tables()));
    keys.insert(decoder.graph_key());
  }
  engine.finish(engine.batch.back());
  decoder.update(engine.exec(), engine.tables());
  EXPECT_EQ(keys.size(), 1u);
  EXPECT_EQ(keys.count(decoder.graph_key()), 0u) << "other numbers of query tokens have the same key";
}

TYPED_TEST(PrefixDecoderTest, Refusals) {
  using Bench = typename TestFixture::Server;
  Bench engine(8);
  engine.two_branches();
  const auto make = [&](const PrefixOptions& o) {
    PrefixDecoder<TypeParam>(engine.exec(), engine.kv(), this->options(), o);
  };
  expect_refusal([&] { make({.max_entries = -1}); }, {"pagoda::PrefixDecoder: max_entries is -1", "2^20"});
  expect_refusal([&] { make({.max_states = -2}); }, {"max_states is -2", "0 (4 for each query token) or more"});
  expect_refusal([&] { make({.state_type = DType::int8}); }, {"state_type is int8", "fp32, fp16 or bf16"});
  auto lists    = this->options();
  lists.entries = {4, 2};
  expect_refusal([&] { PrefixDecoder<TypeParam>(engine.exec(), engine.kv(), lists); },
                 {"pagoda::PrefixDecoder: options.entries.max_entries is 4", "allowed: 0", "PrefixOptions"});
  DeviceRates large;
  large.tiles = {{256, 1}};
  expect_refusal([&] { make({.rates = large}); }, {"a tile of the rates has 256 rows", "up to 128"});
  large.tiles = {};
  expect_refusal([&] { make({.rates = large}); }, {"tiles is empty"});
  DeviceRates chains;
  chains.chain_rows = 1000;
  expect_refusal([&] { make({.rates = chains}); }, {"chain_rows of the rates is 1000", "allowed: 0 (no chains) to "});

  PrefixDecoder<TypeParam> decoder(engine.exec(), engine.kv(), this->options(), {.rates = any_page_pays()});
  this->expect_right_step(engine, decoder);
  const auto refused = [&](const auto& change, std::initializer_list<const char*> words) {
    BatchPages p = engine.tables();
    change(p);
    expect_refusal([&] { decoder.plan(p); }, words);
  };
  refused([](BatchPages& p) { p.batch = 25; }, {"pagoda::PrefixDecoder::plan: batch is 25", "max_batch = 24"});
  refused([](BatchPages& p) { p.page_size = 32; }, {"page_size is 32", "cache, 16"});
  refused([](BatchPages& p) { p.query_len = 5; }, {"there are 25 query tokens", "max_query_tokens = 24"});
  refused([](BatchPages& p) { p.num_sequences = 2; }, {"pagoda::PrefixDecoder::plan: sequence_ids[2] is 2"});
  std::vector<int> numbers(30, 0);
  refused([&](BatchPages& p) { p.block_table = numbers.data(); },
          {"block_table and page_rows are both given", "one of block_table, page_indptr and page_rows"});
  const std::vector<const int*> nulls(Bench::max_sequences, nullptr);
  refused([&](BatchPages& p) { p.page_rows = nulls.data(); }, {"page_rows[0] is null", "the pages of 101 tokens"});

  // Refused tables changed nothing.
  const auto out = engine.outputs();
  const auto lse = this->lse();
  const int n    = engine.tokens();
  using Lse      = typename TestFixture::LseRows;
  decoder.decode(engine.exec(), engine.queries(), engine.kv(), Bench::first(out, n),
                 Lse(lse.data(), n, Bench::q_heads));
  engine.exec().fence();
  engine.expect_right(out, lse);
  expect_refusal([&] { decoder.decode(engine.exec(), Bench::first(engine.q, 4), engine.kv(), Bench::first(out, 4)); },
                 {"pagoda::PrefixDecoder::decode: q has 4 query tokens", "those of the installed plan, 5"});
  const auto rows = make_contiguous_cache<AnyType>(
      engine.exec(), {.num_sequences = 2, .max_seq_len = 32, .num_kv_heads = 2, .head_dim = Bench::dim});
  const ContiguousKV contiguous{rows.k, rows.v, Kokkos::View<int*, typename TypeParam::memory_space>("lengths", 2),
                                rows.order};
  expect_refusal([&] { decoder.decode(engine.exec(), engine.queries(), contiguous, Bench::first(out, n)); },
                 {"the cache has pages of 0 tokens", "as the decoder was made for, 16"});
  this->expect_right_step(engine, decoder);
}

}  // namespace
}  // namespace pagoda::test
