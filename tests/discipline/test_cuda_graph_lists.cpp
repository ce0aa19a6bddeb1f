// SPDX-License-Identifier: Apache-2.0
// Captured decodes of lists read the list when they run: they are right for later lengths and for other lists.
#include <Kokkos_Core.hpp>

#if defined(KOKKOS_ENABLE_DEFAULT_DEVICE_TYPE_CUDA)

#include "tests/discipline/captured_graph.hpp"
#include "tests/entries/forests.hpp"
#include "tests/prefix/engine.hpp"
#include "tests/support/watch.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <vector>

namespace pagoda::test {
namespace {

using Space = Kokkos::Cuda;

/// A decoder of an engine's batch, its outputs, and a graph of its decode.
struct CapturedDecoder {
  using Server = Engine<Space, AnyType>;
  using Lse    = Server::Lse;

  explicit CapturedDecoder(cudaStreamCaptureMode mode) {
    engine.two_branches();
    kv.emplace(engine.kv());
    DeviceRates rates;  // sharing of any page pays
    rates.list_us = rates.item_us = 0;
    rates.state_bytes_per_us *= 100;
    decoder.emplace(engine.exec(), *kv, DecodeOptions<Space::memory_space>{.num_q_heads = Server::q_heads},
                    PrefixOptions{.rates = rates});
    packed = decoder->update(engine.exec(), engine.tables());
    key    = decoder->graph_key();
    decode();  // loads the kernel that merges partial states, which belongs to no plan
    engine.exec().fence();
    graph.emplace(engine.exec().cuda_stream(), mode, [&] { decode(); });
  }
  void decode() {
    const int n = engine.tokens();
    decoder->decode(engine.exec(), engine.queries(), *kv, Server::first(out, n), Lse(lse.data(), n, Server::q_heads));
  }
  /// Updates for the engine's batch, which must have the key of the capture, and compares a replay with the reference
  /// and, bit for bit, with an eager decode.
  void expect_right(bool new_plan) {
    engine.refresh(*kv);
    ASSERT_TRUE(decoder->update(engine.exec(), engine.tables()));
    EXPECT_EQ(decoder->report().new_plan, new_plan);
    ASSERT_EQ(decoder->graph_key(), key);
    poison();
    graph->launch();
    engine.expect_right(out, lse);
    const auto replayed = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), out);
    poison();
    decode();
    engine.exec().fence();
    const auto eager          = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), out);
    const std::size_t written = std::size_t(engine.tokens()) * Server::q_heads * Server::dim;
    EXPECT_EQ(std::memcmp(replayed.data(), eager.data(), written * sizeof(AnyType)), 0);
  }
  void poison() {
    Kokkos::deep_copy(out, AnyType(std::numeric_limits<float>::quiet_NaN()));
    Kokkos::deep_copy(lse, std::numeric_limits<float>::quiet_NaN());
  }

  Server engine{1, 16, 20, 0, instances<Space>()[0]};
  std::optional<PagedKV<AnyType, Space::memory_space>> kv;
  Server::Rows out = engine.outputs();
  Lse lse{"lse", Server::max_tokens, Server::q_heads};
  std::optional<PrefixDecoder<Space>> decoder;
  std::optional<Graph> graph;
  bool packed       = false;
  std::uint64_t key = 0;
};

TEST(CudaGraphOfLists, ADecoderReplaysAllListsOfTheKey) {
  for (const auto mode : {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal}) {
    CapturedDecoder c(mode);
    ASSERT_TRUE(c.packed && c.graph->ok());
    c.expect_right(false);
    for (int step = 0; step < 20; ++step) {  // sequences grow, also to new pages
      for (const int slot : c.engine.batch) c.engine.grow(slot, 1);
      c.expect_right(false);
    }
    std::rotate(c.engine.batch.begin(), c.engine.batch.begin() + 2, c.engine.batch.end());
    c.expect_right(true);
    // Another forest: a sequence ends, and one that shares less takes its place.
    c.engine.finish(c.engine.batch.back());
    c.engine.admit(c.engine.batch[0], 3, 40);
    c.expect_right(true);
  }
}

/// A list in arrays of fixed lengths, whose last entries are skipped.
struct FixedList {
  Kokkos::View<Entry*, Space::memory_space> entries{"entries", 16};
  Kokkos::View<EntryQuery*, Space::memory_space> queries{"queries", 16};
  Kokkos::View<int*, Space::memory_space> state_begin;

  explicit FixedList(int query_tokens) : state_begin("state_begin", query_tokens + 1) {}
  void set(EntryList list) const {
    list.entries.resize(entries.extent(0), Entry{1 << 30, 0, -1, 1 << 30, 0, 3});
    list.queries.resize(queries.extent(0));
    list.state_begin.resize(state_begin.extent(0), 0);
    const auto copy = []<class X>(const Kokkos::View<X*, Space::memory_space>& to, const std::vector<X>& from) {
      Kokkos::deep_copy(to, Kokkos::View<const X*, Kokkos::HostSpace>(from.data(), from.size()));
    };
    copy(entries, list.entries), copy(queries, list.queries), copy(state_begin, list.state_begin);
  }
};

template <class Param>
struct CudaGraphOfEntries : testing::Test {};
TYPED_TEST_SUITE(CudaGraphOfEntries, lists::Plain::of<Space>, Names);

TYPED_TEST(CudaGraphOfEntries, ReplaysOtherListsAndLengths) {
  using T = typename TypeParam::type;
  PrefixBatch batch;
  batch.rows      = {{0, 1, 2}, {0, 1, 3, 4}, {0, 1, 3, 5}};
  batch.seq_lens  = {40, 50, 60};
  batch.query_len = 2;
  const Forest f  = forest_of(batch);
  ASSERT_GT(f.list.num_states(), 0);
  Sequences grown      = f.sequences;
  grown.lengths        = {48, 64, 64};
  const auto sample_of = [&](const std::vector<int>& lengths) {
    Sample<T> sample(f.sequences.shape({.head_dim = 64}, f.query_tokens()));
    sample.set_sight(f.sight(true, lengths));
    return sample;
  };
  const Sample<T> longest = sample_of(grown.lengths);
  ListScene<Space, T> scene(longest, grown, {.layout = Layout::paged}, instances<Space>()[0]);
  const FixedList list(f.query_tokens());
  list.set(f.list);
  const auto problem = scene.problem({list.entries, list.queries, list.state_begin}, f.list.num_states());
  const auto plan    = scene.plan({16, f.list.max_queries, 64});
  scene.decode(plan, problem);
  scene.exec().fence();
  const Graph graph(scene.exec().cuda_stream(), cudaStreamCaptureModeGlobal, [&] { scene.decode(plan, problem); });
  ASSERT_TRUE(graph.ok());

  const EntryList plain = f.sequences.plain_list({2, 2, 2});  // without partial states
  for (const EntryList* const now : {&f.list, &plain, &f.list})
    for (const std::vector<int>& lengths : {f.sequences.lengths, std::vector{41, 64, 61}, grown.lengths}) {
      list.set(*now);
      scene.set_lengths(lengths);
      scene.scene().poison_outputs();
      scene.exec().fence();
      graph.launch();
      EXPECT_TRUE(scene.right(sample_of(lengths))) << (now == &plain ? "plain list" : "shared prefixes");
    }
}

}  // namespace
}  // namespace pagoda::test

#endif
