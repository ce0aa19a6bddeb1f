// SPDX-License-Identifier: Apache-2.0
// Plans with the option `checked`: a sequence with a fault gets NaN, the others are right, and the report names it.
#include "tests/support/refusal.hpp"
#include "tests/support/scene.hpp"
#include "tests/support/watch.hpp"

#include <climits>
#include <cmath>

namespace pagoda::test {
namespace {

const std::vector<Layout> layouts{Layout::contiguous, Layout::paged, Layout::csr};

/// A scene whose tables tests write to.
template <class Space, class T>
struct Hostile {
  using Memory = typename Space::memory_space;
  using Ints_  = Kokkos::View<int*, Memory, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;

  Hostile(const Sample<T>& given, const Placement& placement) : sample(given), scene(given, placement) {
    scene.options().checked = true;
  }

  /// Writes a value and returns the one before.
  int poke(const int* at, int value) {
    const Ints_ there(const_cast<int*>(at), 1);
    int before = 0;
    const Kokkos::View<int*, Kokkos::HostSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>> here(&before, 1);
    Kokkos::deep_copy(scene.exec(), here, there);
    Kokkos::deep_copy(scene.exec(), there, value);
    scene.exec().fence();
    return before;
  }
  CacheRef cache() const {
    return std::visit([](const auto& kv) { return kv.ref(); }, scene.cache());
  }
  const int* length(int s) const { return cache().seq_lens + s; }
  /// Page i of sequence s of a paged cache whose earlier sequences hold `before` pages.
  const int* page(int s, int i, int before) const {
    const CacheRef kv = cache();
    return kv.block_table + (kv.page_indptr ? before + i : s * kv.table_row_stride + i * kv.table_page_stride);
  }

  /// Expects NaN, written by the decode, in out and lse of exactly the query tokens of these entries, and the
  /// reference's numbers in the others.
  void expect_nan(const std::vector<bool>& bad_entries) {
    scene.results();  // downloads out and lse
    const double limit = sizeof(T) < 4 ? 3e-2 : 1e-4;
    for (int token = 0; token < sample.query_tokens(); ++token)
      for (int h = 0; h < sample.shape().num_q_heads; ++h) {
        const bool bad      = bad_entries[sample.entry_of(token)];
        const auto& row     = sample.rows()[sample.row_of(token, h)];
        const auto expected = [&](Array<Space>& array, std::array<std::int64_t, 4> at, double want) {
          const double got = array.get(at);
          if (!bad) return std::isinf(want) ? got == want : std::abs(got - want) <= limit * (1 + std::abs(want));
          return std::isnan(got) && *array.element(at) != poison;
        };
        EXPECT_TRUE(expected(scene.lse(), {token, h}, row.lse)) << "lse of token " << token << ", head " << h;
        for (int d = 0; d < sample.head_dim_v(); ++d)
          ASSERT_TRUE(expected(scene.out(), {token, h, d}, row.out[d]))
              << "token " << token << ", head " << h << ", dim " << d << ": " << scene.out().get({token, h, d});
      }
  }
  /// Decodes and expects these faults, whose messages need not be given, and NaN in their entries alone.
  void expect_faults(const Plan<Space>& plan, const std::vector<TableFault>& expected) {
    scene.poison_outputs();
    scene.decode(plan);
    const auto found = faults(scene.exec(), plan);
    ASSERT_EQ(found.size(), expected.size());
    std::vector<bool> bad(sample.batch(), false);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(found[i].entry, expected[i].entry) << found[i].message;
      EXPECT_EQ(found[i].sequence, expected[i].sequence) << found[i].message;
      EXPECT_EQ(found[i].page, expected[i].page) << found[i].message;
      EXPECT_EQ(found[i].value, expected[i].value) << found[i].message;
      EXPECT_NE(found[i].message.find(expected[i].message), std::string::npos) << found[i].message;
      bad[expected[i].entry] = true;
    }
    expect_nan(bad);
  }
  /// Decodes and expects one fault with this message, in this entry.
  void expect_fault(const Plan<Space>& plan, int entry, const std::string& message) {
    scene.poison_outputs();
    scene.decode(plan);
    const auto found = faults(scene.exec(), plan);
    EXPECT_EQ(fault_count(scene.exec(), plan), 1);
    ASSERT_EQ(found.size(), 1u) << message;
    EXPECT_EQ(found[0].entry, entry);
    EXPECT_EQ(found[0].message, message);
    std::vector<bool> bad(sample.batch(), false);
    bad[entry] = true;
    expect_nan(bad);
  }
  /// The same while the table holds another value, and no fault before and after.
  void expect_fault(const Plan<Space>& plan, const int* at, int value, int entry, const std::string& message) {
    const int before = poke(at, value);
    expect_fault(plan, entry, message);
    poke(at, before);
    scene.poison_outputs();
    scene.decode(plan);
    EXPECT_EQ(fault_count(scene.exec(), plan), 0);
    EXPECT_TRUE(scene.right());
  }

  const Sample<T>& sample;
  Scene<Space, T> scene;
};

template <class Param>
struct Checked : testing::Test {};
TYPED_TEST_SUITE(Checked, SpacesAndTypes, Names);

/// The second of these entries gets the faults. It holds 3 pages of 16 tokens, the first one holds 2.
Shape three_entries() { return {.lengths = {30, 40, 0}, .head_dim = 32}; }

TYPED_TEST(Checked, GoodTablesAreRightWithoutFaults) {
  using T     = typename TypeParam::type;
  using Space = typename TypeParam::space;
  // Unused slots of the tables hold garbage, which is not reported.
  for (const int unused : {-1, INT_MIN, INT_MAX, 123456})
    for (const Layout layout : layouts)
      for (const bool ragged : {false, true}) {
        const Sample<T> sample({.lengths = {30, 40, 0, 700}, .head_dim = 32, .query_lens = {2, 1, 3, 1}});
        Hostile<Space, T> h(sample, {.layout = layout, .indirect = ragged, .unused_page = unused});
        const auto plan = h.scene.plan();
        EXPECT_EQ(fault_count(h.scene.exec(), plan), 0) << "before the first decode";
        h.scene.decode(plan);
        EXPECT_TRUE(h.scene.right());
        EXPECT_EQ(fault_count(h.scene.exec(), plan), 0);
      }
}

TYPED_TEST(Checked, LengthsOutsideOfTheCache) {
  using T     = typename TypeParam::type;
  using Space = typename TypeParam::space;
  const Sample<T> sample(three_entries());
  for (const Layout layout : layouts) {
    Hostile<Space, T> h(sample, {.layout = layout});
    const auto plan = h.scene.plan();
    const int most  = h.cache().max_seq_len;
    for (const int length : {-1, INT_MIN, INT_MAX, most + 1})
      h.expect_fault(
          plan, h.length(1), length, 1,
          "pagoda::decode: seq_lens(1) is " + std::to_string(length) + "; allowed: 0 to " + std::to_string(most));
  }
}

TYPED_TEST(Checked, PageIdsOutsideOfTheCache) {
  using T     = typename TypeParam::type;
  using Space = typename TypeParam::space;
  const Sample<T> sample(three_entries());
  for (const Layout layout : {Layout::paged, Layout::csr}) {
    Hostile<Space, T> h(sample, {.layout = layout});
    const auto plan = h.scene.plan();
    const int pages = static_cast<int>(h.cache().num_pages());
    for (const int i : {0, 2})
      for (const int id : {-1, INT_MIN, INT_MAX, pages})
        h.expect_fault(plan, h.page(1, i, 2), id, 1,
                       "pagoda::decode: page " + std::to_string(i) + " of sequence 1 (batch entry 1) is " +
                           std::to_string(id) + "; allowed: 0 to " + std::to_string(pages - 1));
  }
}

TYPED_TEST(Checked, SequenceIdsOutsideOfTheCache) {
  using T     = typename TypeParam::type;
  using Space = typename TypeParam::space;
  const Sample<T> sample(three_entries());
  for (const Layout layout : layouts) {
    Hostile<Space, T> h(sample, {.layout = layout, .indirect = true});
    const auto plan     = h.scene.plan();
    const int sequences = h.cache().num_sequences;
    for (const int id : {-1, INT_MIN, INT_MAX, sequences})
      h.expect_fault(plan, h.cache().sequence_ids + 1, id, 1,
                     "pagoda::decode: sequence_ids(1) is " + std::to_string(id) + "; allowed: 0 to " +
                         std::to_string(sequences - 1));
  }
}

TYPED_TEST(Checked, PageListsOutsideOfTheIndices) {
  using T     = typename TypeParam::type;
  using Space = typename TypeParam::space;
  const Sample<T> sample({.lengths = {30, 40}, .head_dim = 32});
  Hostile<Space, T> h(sample, {.layout = Layout::csr});
  const auto plan   = h.scene.plan();
  const CacheRef kv = h.cache();
  for (const int end : {INT_MIN, 4, INT_MAX}) {
    const int before = h.poke(kv.page_indptr + 2, end);
    h.scene.poison_outputs();
    h.scene.decode(plan);
    const auto found = faults(h.scene.exec(), plan);
    if (end == INT_MAX) {  // the list is longer than the sequence needs
      EXPECT_TRUE(found.empty());
    } else {
      ASSERT_EQ(found.size(), 1u);
      EXPECT_NE(found[0].message.find("pages of sequence 1 (batch entry 1); allowed: at least 3"), std::string::npos)
          << found[0].message;
      h.expect_nan({false, true});
    }
    h.poke(kv.page_indptr + 2, before);
  }
}

// The table of a CSR cache may hold more than the list of one of its sequences.
TYPED_TEST(Checked, LengthsBeyondThePageList) {
  using T     = typename TypeParam::type;
  using Space = typename TypeParam::space;
  const Sample<T> sample({.lengths = {30, 40, 700}, .head_dim = 32});
  Hostile<Space, T> h(sample, {.layout = Layout::csr});
  const auto plan = h.scene.plan();
  for (const int length : {49, 700}) {
    const int before = h.poke(h.length(1), length);
    h.expect_faults(plan,
                    {{1, 1, -1, 3, "page_indptr gives 3 pages of sequence 1 (batch entry 1); allowed: at least"}});
    h.poke(h.length(1), before);
  }
  h.poke(h.length(1), 48);  // the list ends with the last token
  h.scene.decode(plan);
  EXPECT_EQ(fault_count(h.scene.exec(), plan), 0);
}

// The first and the last page of a long list, and some between: all workers of a team find their own.
TYPED_TEST(Checked, AnyPageOfALongList) {
  using T     = typename TypeParam::type;
  using Space = typename TypeParam::space;
  const Sample<T> sample({.lengths = {20, 16 * 611}, .head_dim = 32});
  for (const Layout layout : {Layout::paged, Layout::csr}) {
    Hostile<Space, T> h(sample, {.layout = layout});
    const auto plan = h.scene.plan();
    for (const int i : {0, 1, 76, 77, 255, 256, 305, 534, 609, 610}) {
      const int before = h.poke(h.page(1, i, 2), -9);
      h.expect_faults(plan, {{1, 1, i, -9, ""}});
      h.poke(h.page(1, i, 2), before);
    }
    // The first of several is reported.
    h.poke(h.page(1, 600, 2), -1), h.poke(h.page(1, 599, 2), 1 << 30), h.poke(h.page(1, 79, 2), -2);
    h.expect_faults(plan, {{1, 1, 79, -2, ""}});
  }
}

// Different faults in several entries with several query tokens; the others are right.
TYPED_TEST(Checked, SeveralFaultsAtOnce) {
  using T     = typename TypeParam::type;
  using Space = typename TypeParam::space;
  for (const std::vector<int>& query_lens : {std::vector<int>{2, 1, 3, 1, 2}, std::vector<int>{2, 2, 2, 2, 2}}) {
    const Sample<T> sample({.lengths = {30, 40, 700, 20, 33}, .head_dim = 32, .query_lens = query_lens});
    for (const Layout layout : {Layout::paged, Layout::csr}) {
      Hostile<Space, T> h(sample, {.layout = layout});
      const auto plan = h.scene.plan();
      h.poke(h.page(0, 1, 0), -7);
      h.poke(h.length(2), -1);
      h.poke(h.page(3, 0, 2 + 3 + 44), INT_MAX);
      h.expect_faults(plan, {{0, 0, 1, -7, "page 1 of sequence 0 (batch entry 0) is -7"},
                             {2, 2, -1, -1, "seq_lens(2) is -1"},
                             {3, 3, 0, INT_MAX, "page 0 of sequence 3 (batch entry 3) is 2147483647"}});
    }
  }
}

// Both entries that decode a sequence with a fault name it.
TYPED_TEST(Checked, OneSequenceTwiceInABatch) {
  using T     = typename TypeParam::type;
  using Space = typename TypeParam::space;
  const Sample<T> sample(three_entries());
  Hostile<Space, T> h(sample, {.layout = Layout::paged, .indirect = true});
  const auto plan      = h.scene.plan();
  const int* const ids = h.cache().sequence_ids;
  const int sequence   = h.poke(ids + 1, 0);
  h.poke(ids + 1, sequence), h.poke(ids, sequence);
  h.poke(h.page(sequence, 2, 0), 1 << 20);
  h.expect_faults(plan, {{0, sequence, 2, 1 << 20, "(batch entry 0)"}, {1, sequence, 2, 1 << 20, "(batch entry 1)"}});
}

TYPED_TEST(Checked, QueryCountsOfTheFirstEntry) {
  using T     = typename TypeParam::type;
  using Space = typename TypeParam::space;
  const Sample<T> sample({.lengths = {30, 40, 50}, .head_dim = 32, .query_lens = {2, 1, 3}});
  Hostile<Space, T> h(sample, {.layout = Layout::csr});
  const auto plan = h.scene.plan();
  for (const int value : {INT_MIN, -1, 3, INT_MAX}) {
    const int before = h.poke(h.scene.options().cu_seqlens_q.data(), value);
    h.scene.poison_outputs();
    h.scene.decode(plan);
    const auto found = faults(h.scene.exec(), plan);
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].entry, 0);
    EXPECT_EQ(found[0].sequence, -1);
    EXPECT_EQ(found[0].value, value);
    h.expect_nan({true, true, true});
    h.poke(h.scene.options().cu_seqlens_q.data(), before);
  }
}

TYPED_TEST(Checked, RaggedQueryCounts) {
  using T     = typename TypeParam::type;
  using Space = typename TypeParam::space;
  const Sample<T> sample({.lengths = {30, 40, 50}, .head_dim = 32, .query_lens = {2, 1, 3}});
  Hostile<Space, T> h(sample, {.layout = Layout::paged});
  const auto plan = h.scene.plan();
  // A wrong end of entry 1 is a wrong begin of entry 2.
  for (const int value : {INT_MIN, -1, 1, 7, INT_MAX}) {
    const int* const at = h.scene.options().cu_seqlens_q.data() + 2;
    const int before    = h.poke(at, value);
    h.scene.poison_outputs();
    h.scene.decode(plan);
    const auto found = faults(h.scene.exec(), plan);
    ASSERT_FALSE(found.empty());
    EXPECT_EQ(found[0].entry, 1);
    EXPECT_EQ(found[0].sequence, -1);
    EXPECT_NE(found[0].message.find("cu_seqlens_q(2) is " + std::to_string(value)), std::string::npos)
        << found[0].message;
    h.expect_nan({false, true, true});
    h.poke(at, before);
  }
  h.scene.decode(plan);
  EXPECT_EQ(fault_count(h.scene.exec(), plan), 0);
  EXPECT_TRUE(h.scene.right());
}

// No allocation, copy or fence, and two kernels more than without the option.
TYPED_TEST(Checked, DecodeOnlyLaunches) {
  using T     = typename TypeParam::type;
  using Space = typename TypeParam::space;
  const Sample<T> sample(three_entries());
  std::vector<std::string> kernels[2];
  for (const bool checked : {false, true}) {
    Scene<Space, T> scene(sample, {.layout = Layout::paged}, instances<Space>()[0]);
    scene.options().checked = checked;
    const auto plan         = scene.plan();
    scene.exec().fence();
    {
      const Watch watch;
      scene.decode(plan);
    }
    const Watch::Seen seen = Watch::seen();
    EXPECT_TRUE(seen.allocations.empty() && seen.copies.empty() && seen.fences.empty());
    kernels[checked] = seen.kernels;
  }
  ASSERT_EQ(kernels[0].size(), 1u);
  const std::vector<std::string> expected{"Pagoda::decode::examine_tables", kernels[0][0],
                                          "Pagoda::decode::poison_faulty"};
  EXPECT_EQ(kernels[1], expected);
}

TYPED_TEST(Checked, ErrorsNameWhatIsAllowed) {
  using T     = typename TypeParam::type;
  using Space = typename TypeParam::space;
  const Sample<T> sample(three_entries());
  Hostile<Space, T> h(sample, {.layout = Layout::paged});
  h.scene.options().entries.max_entries = 3;
  expect_refusal([&] { h.scene.plan(); }, {"pagoda::plan", "checked is true", "lists of entries", "allowed: false"});
  h.scene.options().entries             = {};
  h.scene.options().programmatic_launch = true;
  expect_refusal([&] { h.scene.plan(); }, {"pagoda::plan", "checked is true with programmatic_launch", "one of them"});
  h.scene.options().programmatic_launch              = false;
  const PagedKV<T, typename Space::memory_space>& kv = std::get<1>(h.scene.cache());
  expect_refusal([&] { PrefixDecoder<Space>(h.scene.exec(), kv, h.scene.options()); },
                 {"pagoda::PrefixDecoder", "checked is true", "allowed: false"});
  const Sample<T> more({.lengths = {30, 40, 0, 5}, .head_dim = 32});
  Scene<Space, T> larger(more, {.layout = Layout::paged, .indirect = true});
  h.scene.options().max_batch = 4;
  const auto plan             = h.scene.plan();
  expect_refusal([&] { larger.decode(plan); }, {"pagoda::decode", "the cache has 7 sequences", "made for, 4"});
  h.scene.options().checked = false;
  const auto unchecked      = h.scene.plan();
  expect_refusal([&] { faults(h.scene.exec(), unchecked); }, {"pagoda::faults", "checked is false", "checked = true"});
}

}  // namespace
}  // namespace pagoda::test
