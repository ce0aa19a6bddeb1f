// SPDX-License-Identifier: Apache-2.0
// What plans, decode_entries and merge_entries refuse, and what check finds in a list.
#include "tests/entries/list_scene.hpp"
#include "tests/support/refusal.hpp"

#include <pagoda/check.hpp>

#include <functional>
#include <string>
#include <type_traits>

namespace pagoda::test {
namespace {

using Space = Device;
using T     = AnyType;

/// Two sequences of two and one pages. Query token 0 has two partial states, query token 1 none.
struct ListErrors : testing::Test {
  Sequences sequences{.rows = {{0, 1}, {2}}, .lengths = {20, 9}};
  EntryList list{
      {{0, 0, 16, 0, 1, 0}, {0, 16, -1, 0, 1, 1}, {1, 0, -1, 1, 1, -1}}, {{0, 0, 1}, {1, 1, 1}}, {0, 2, 2}, {}, 1};
  Sample<T> sample = [this] {
    Sample<T> s(sequences.shape({}, 2));
    s.set_sight([this](int token, int) {
      return sequences.sight(token, sequences.lengths[token], sequences.lengths[token] - 1);
    });
    return s;
  }();
  ListScene<Space, T> scene{sample, sequences};
  DeviceEntries<Space::memory_space> there = on_device(scene.exec(), list);

  template <class Change>
  void expect_decode_refused(const Change& change, std::initializer_list<const char*> words) {
    detail::Problem p = scene.problem(there, 2);
    change(p);
    const auto plan = scene.plan(bounds_of(list));
    expect_refusal([&] { detail::decode_entries(scene.exec(), plan, p); }, words);
  }

  /// What check says of a list with a change.
  std::string complaint(EntryList changed, const std::function<void(EntryList&)>& change) {
    const auto plan = scene.plan(bounds_of(changed));
    change(changed);
    const auto device = on_device(scene.exec(), changed);
    const auto q      = scene.scene().q().template view<const T, 3>();
    try {
      std::visit([&](const auto& kv) { pagoda::check(scene.exec(), plan, q, kv, device, 2); }, scene.cache());
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  }

  /// The same for a plan with chains, which only hand-tuned kernels have.
  std::string complaint_of_chains(EntryList changed, const std::function<void(EntryList&)>& change) {
    const detail::ListLimits limits{2, 2, 2, changed.max_queries, true};
    change(changed);
    const auto device = on_device(scene.exec(), changed);
    try {
      std::visit([&](const auto& kv) { detail::check(scene.exec(), kv.ref(), device.ref(), limits); }, scene.cache());
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  }
};

TEST_F(ListErrors, Plans) {
  const auto plan = [this](const std::function<void(DecodeOptions<Space::memory_space>&)>& change) {
    auto& o   = scene.scene().options();
    o.entries = {4, 2, 0};
    change(o);
    static_cast<void>(scene.scene().plan());
  };
  plan([](auto&) {});
  expect_refusal([&] { plan([](auto& o) { o.entries.max_entries = -1; }); }, {"entries.max_entries is -1", "allowed"});
  expect_refusal([&] { plan([](auto& o) { o.entries.max_queries = 0; }); }, {"entries.max_queries is 0", "allowed"});
  expect_refusal([&] { plan([](auto& o) { o.entries.max_listed = -3; }); }, {"entries.max_listed is -3", "allowed"});
  expect_refusal([&] { plan([](auto& o) { o.entries = {1 << 20, 1 << 20, 0}; }); },
                 {"entries.max_entries is 1048576 at entries.max_queries 1048576", "entries.max_listed"});
  expect_refusal([&] { plan([](auto& o) { o.entries = {1, 2147483647, 1}; }); }, {"entries.max_queries", "2^31"});
  expect_refusal([&] { plan([](auto& o) { o.entries = {1 << 30, 1, 1 << 30}; }); }, {"entries.max_listed", "2^30"});
  expect_refusal([&] { plan([](auto& o) { o.window_left = 5; }); }, {"window_left is 5", "lists of entries"});
  if (std::is_same_v<Space::memory_space, Kokkos::HostSpace>)
    expect_refusal([&] { plan([](auto& o) { o.window_left = -1, o.entries.chains = true; }); },
                   {"no backend supports this problem: entries.chains is true, and only hand-tuned kernels"});
  expect_refusal([&] { plan([](auto& o) { o.window_left = -1, o.entries.chains = true, o.backend = "generic"; }); },
                 {"\"generic\" does not support this problem: entries.chains is true, and only hand-tuned kernels"});
}

TEST_F(ListErrors, APlanOfTheOtherKind) {
  const detail::Problem p = scene.problem(there, 2);
  const auto of_batches   = scene.plan({});
  expect_refusal([&] { detail::decode_entries(scene.exec(), of_batches, p); },
                 {"pagoda::decode_entries", "entries.max_entries = 0", "or decode"});
  const auto of_lists = scene.plan(bounds_of(list));
  expect_refusal([&] { scene.scene().decode(of_lists); },
                 {"pagoda::decode", "entries.max_entries = 4", "decode_entries"});
  EXPECT_NE(of_lists.describe().find("lists of entries"), std::string::npos);
}

TEST_F(ListErrors, Decodes) {
  using P = detail::Problem;
  expect_decode_refused([](P& p) { p.entries.num_entries = 5; }, {"5 entries", "entries.max_entries = 4"});
  expect_decode_refused([](P& p) { p.entries.entries = nullptr; }, {"entries have a null pointer"});
  expect_decode_refused([](P& p) { p.entries.queries = nullptr; }, {"queries have a null pointer"});
  expect_decode_refused([](P& p) { p.entries.num_state_begin = 4; },
                        {"state_begin has 4 elements", "q.extent(0) + 1 = 3"});
  expect_decode_refused([](P& p) { p.entries.state_begin = nullptr; }, {"state_begin has 3", "not null"});
  expect_decode_refused([](P& p) { p.state_out.extent[1] = 9; }, {"states.out is (2, 9, 64)", "(2, 4, 64)"});
  expect_decode_refused([](P& p) { p.state_out.data = nullptr; }, {"states.out has a null pointer"});
  expect_decode_refused([](P& p) { p.state_lse.extent[0] = 1; }, {"states.lse is (1, 4)", "(2, 4)"});
  expect_decode_refused([](P& p) { p.state_lse.data = nullptr; }, {"states.lse has a null pointer"});
  expect_decode_refused([](P& p) { p.state_out.type = DType::fp8_e4m3; }, {"states.out holds fp8_e4m3", "allowed"});
  expect_decode_refused([](P& p) { p.out.extent[0] = 3; }, {"pagoda::decode_entries: out is (3, 4, 64)"});
  expect_decode_refused([](P& p) { p.kv.seq_lens = nullptr; }, {"pagoda::decode_entries", "seq_lens"});
}

TEST_F(ListErrors, MasksBesideAlibi) {
  scene.scene().options().alibi_slopes = Kokkos::View<float*, Space::memory_space>("slopes", 4);
  const auto plan                      = scene.plan(bounds_of(list));
  detail::Problem p                    = scene.problem(there, 2);
  detail::decode_entries(scene.exec(), plan, p);
  p.entries.num_mask_words = 4;
  expect_refusal([&] { detail::decode_entries(scene.exec(), plan, p); }, {"4 words of masks", "alibi_slopes"});
}

TEST_F(ListErrors, Merges) {
  using P             = detail::Problem;
  const auto expected = [this](const std::function<void(P&)>& change, std::initializer_list<const char*> words) {
    P p = scene.problem(there, 2);
    change(p);
    expect_refusal([&] { detail::merge_entries(scene.exec(), p, nullptr); }, words);
  };
  expected([](P& p) { p.entries.num_state_begin = 9; }, {"state_begin has 9", "out.extent(0) + 1 = 3"});
  expected([](P& p) { p.state_out.extent[2] = 3; }, {"axis 2 of states.out", "3", "64"});
  expected([](P& p) { p.state_lse.extent[1] = 3; }, {"axis 1 of states.lse", "3", "4"});
  expected([](P& p) { p.state_lse.extent[0] = 7; }, {"states.lse has 7 states", "allowed: 2"});
  expected([](P& p) { p.state_out.type = DType::int8; }, {"states.out holds int8"});
  expected([](P& p) { p.lse.extent[0] = 7; }, {"axis 0 of lse", "7"});
  expected([](P& p) { p.state_out.data = nullptr; }, {"pagoda::merge_entries: states.out has a null pointer"});
  expected([](P& p) { p.state_lse.data = nullptr; }, {"pagoda::merge_entries: states.lse has a null pointer"});
  expected([](P& p) { p.out.data = nullptr; }, {"pagoda::merge_entries: out has a null pointer"});
}

// The plan's sinks have an entry for each of its heads.
TEST_F(ListErrors, MergesOfOtherHeads) {
  const auto plan = scene.plan(bounds_of(list));
  const auto states =
      EntryStates{Kokkos::View<float***, Space>("states", 2, 40, 64), Kokkos::View<float**, Space>("lse", 2, 40)};
  expect_refusal(
      [&] {
        merge_entries(scene.exec(), plan, there, states, Kokkos::View<float***, Space>("out", 2, 40, 64),
                      Kokkos::View<float**, Space>("lse", 2, 40));
      },
      {"pagoda::merge_entries: out has 40 heads", "the plan's num_q_heads = 4"});
}

TEST_F(ListErrors, CheckFindsFaultsOfChains) {
  // An entry without tokens begins the chain of both sequences.
  const EntryList chain{{{0, 0, 0, 0, 2, -1, -1, 2}, {0, 0, -1, 0, 1, -1, -1, -1}, {1, 0, -1, 1, 1, -1, -1, -2}},
                        {{0, 0, 1}, {1, 1, 1}},
                        {0, 0, 0},
                        {},
                        2};
  EXPECT_EQ(complaint(chain, [](EntryList&) {}),
            "pagoda::check: entry 0 of the list has chain 2; allowed: 0 (entries.chains of the plan is false)");
  EXPECT_EQ(complaint_of_chains(chain, [](EntryList&) {}), "");
  using Case = std::pair<std::function<void(EntryList&)>, const char*>;
  for (const auto& [change, words] : std::vector<Case>{
           {[](auto& l) { l.entries[0].chain = 3; }, "entry 0 of the list has chain 3; allowed: up to the 2 entries"},
           {[](auto& l) { l.entries[0].chain = 2147483647; }, "has chain 2147483647; allowed: up to the 2 entries"},
           {[](auto& l) { std::swap(l.entries[1].chain, l.entries[2].chain); },
            "entry 0 of the list begins a chain, in which entry 1 has chain -2; allowed: -1"},
           {[](auto& l) { l.entries[1].chain = 0; }, "in which entry 1 has chain 0; allowed: -1"},
           {[](auto& l) { l.entries[2].chain = 1; }, "in which entry 2 has chain 1; allowed: -2"},
           {[](auto& l) { l.entries[0].chain = 1; },
            "entry 2 of the list has chain -2, and no chain that contains it begins 2 entries before; allowed: 0"},
           {[](auto& l) { l.entries[0].chain = 0; }, "entry 1 of the list has chain -1, and no chain"},
           {[](auto& l) { l.entries[0].chain = -1; }, "entry 0 of the list has chain -1, and no chain"},
           {[](auto& l) { l.entries[0].chain = -2147483647 - 1; }, "entry 0 of the list has chain -2147483648, and no"},
           {[](auto& l) { l.entries[0].last = -1; }, "entry 0 of the list has last -1 and begins a chain; allowed: 0"},
           {[](auto& l) { l.entries[1].num_queries = 0; },
            "entry 1 of the list is in a chain and has num_queries 0; allowed: 1 or more"},
           {[](auto& l) { l.entries[0].num_queries = 0; }, "entry 0 of the list is in a chain and has num_queries 0"},
           {[](auto& l) { l.entries[0].num_queries = 1; },
            "entry 2 of the list is in a chain and has num_queries 1 from query_begin 1; allowed: a part of those of "
            "entry 0, which begins the chain"},
           {[](auto& l) { l.entries[0].query_begin = 1, l.entries[0].num_queries = 1; },
            "entry 1 of the list is in a chain and has num_queries 1 from query_begin 0"},
           {[](auto& l) { l.entries[2].num_queries = 2147483647; }, "has num_queries 2147483647 from query_begin 1"},
           {[](auto& l) { l.entries[1].state = 0; },
            "entry 1 of the list is in a chain and has state 0; allowed: -1, as entry 0, which begins the chain"},
           {[](auto& l) { l.entries[2].kv_head = 1; },
            "entry 2 of the list is in a chain and has kv_head 1; allowed: -1, as entry 0, which begins the chain"},
           {[](auto& l) { l.queries[1].behind = 2; }, "query 1 of the list is in a chain and has behind 2; allowed: 1"},
           {[](auto& l) { l.queries[0].mask = 0, l.masks = {0, 0}; },
            "query 0 of the list is in a chain and has mask 0; allowed: a negative number, for none"}})
    EXPECT_NE(complaint_of_chains(chain, change).find(words), std::string::npos)
        << complaint_of_chains(chain, change) << "\n lacks " << words;
}

// On the stack, where GCC 12 left the Views of a defaulted constructor uninitialized.
TEST_F(ListErrors, DecodesOfAnEmptyList) {
  DeviceEntries<Space::memory_space> none;
  EXPECT_EQ(none.entries.data(), nullptr);
  EXPECT_EQ(none.masks.extent(0), 0u);
  none = there;
  EXPECT_EQ(none.entries.data(), there.entries.data());
}

TEST_F(ListErrors, ChecksOfListsWithoutMemory) {
  const auto plan    = scene.plan(bounds_of(list));
  const auto refuses = [&](const auto& change, std::initializer_list<const char*> words) {
    auto changed = there;
    change(changed);
    const auto q = scene.scene().q().template view<const T, 3>();
    expect_refusal(
        [&] {
          std::visit([&](const auto& kv) { pagoda::check(scene.exec(), plan, q, kv, changed, 2); }, scene.cache());
        },
        words);
  };
  refuses([](auto& l) { l.entries = Kokkos::View<const Entry*, Space::memory_space>(nullptr, 3); },
          {"pagoda::check: the list's entries have a null pointer"});
  refuses([](auto& l) { l.queries = Kokkos::View<const EntryQuery*, Space::memory_space>(nullptr, 2); },
          {"pagoda::check: the list's queries have a null pointer"});
  refuses([](auto& l) { l.state_begin = Kokkos::View<const int*, Space::memory_space>(nullptr, 3); },
          {"pagoda::check: the list's state_begin has 3 elements", "not null"});
  refuses([](auto& l) { l.masks = Kokkos::View<const std::uint64_t*, Space::memory_space>(nullptr, 2); },
          {"pagoda::check: the list's masks have a null pointer"});
}

TEST_F(ListErrors, CheckFindsWhatDoesNotFit) {
  const auto complaint_of = [&](const std::function<void(EntryList&)>& change) { return complaint(list, change); };
  EXPECT_EQ(complaint_of([](EntryList&) {}), "");
  EXPECT_EQ(complaint_of([](EntryList& l) { l.entries[0] = {-1, -1, -1, -1, 0, 7}; }), "");  // has no query tokens
  using Case = std::pair<std::function<void(EntryList&)>, const char*>;
  for (const auto& [change, words] : std::vector<Case>{
           {[](auto& l) { l.entries[1].sequence = 2; }, "entry 1 of the list has sequence 2; allowed: 0 to 1"},
           {[](auto& l) { l.entries[1].first = 8; }, "entry 1 of the list has tokens from 8 to 20"},
           {[](auto& l) { l.entries[1].first = -16; }, "tokens from -16"},
           {[](auto& l) { l.entries[0].last = 32; }, "tokens from 0 to 32"},
           {[](auto& l) { l.entries[2].kv_head = 2; }, "kv_head 2; allowed: below 2"},
           {[](auto& l) { l.entries[2].query_begin = 2; }, "num_queries 1 from query_begin 2"},
           {[](auto& l) { l.entries[2].query_begin = -1; }, "query_begin -1"},
           {[](auto& l) { l.entries[0].num_queries = 2; }, "0 to 1 (the plan's entries.max_queries)"},
           {[](auto& l) { l.queries[1].token = 2; }, "query 1 of the list has token 2; allowed: 0 to 1"},
           {[](auto& l) { l.queries[1].sequence = -1; }, "query 1 of the list has sequence -1; allowed: 0 to 1"},
           {[](auto& l) { l.queries[1].behind = 0; }, "has behind 0; allowed: 1 to"},
           {[](auto& l) { l.queries[1].mask = 0; }, "has mask 0; allowed: the first of two of the list's 0 words"},
           {[](auto& l) { l.queries[1].mask = 0, l.queries[1].behind = 129, l.masks = {0, 0}; },
            "behind 129; allowed: 1 to 128"},
           {[](auto& l) { l.entries[1].state = 2; }, "entry 1 of the list has state 2"},
           {[](auto& l) { l.entries[2].state = 0; }, "gives query token 1 0 states"},
           {[](auto& l) { l.state_begin = {0, 3, 3}; }, "within the 2 states"},
           {[](auto& l) { l.state_begin = {0, 2}; }, "the list's state_begin has 2 elements; allowed: none, or"},
           {[](auto& l) { l.state_begin.clear(); }, "entry 0 of the list has state 0"}})
    EXPECT_NE(complaint_of(change).find(words), std::string::npos) << complaint_of(change) << "\n lacks " << words;
  scene.set_lengths({20, 17});
  EXPECT_NE(complaint_of([](EntryList&) {}).find("entry 2 of the list has page id -1 as page 1 of its sequence"),
            std::string::npos)
      << complaint_of([](EntryList&) {});
  scene.set_lengths({33, 9});
  EXPECT_EQ(complaint_of([](EntryList&) {}), "pagoda::check: seq_lens(0) is 33; allowed: 0 to 32");
}

TEST_F(ListErrors, CheckFindsPageListsThatAreTooShort) {
  ListScene<Space, T> in_lists(sample, sequences, {.layout = Layout::csr});
  in_lists.set_lengths({20, 17});  // sequence 1 has a page of 16 tokens
  const auto plan = in_lists.plan(bounds_of(list));
  const auto q    = in_lists.scene().q().template view<const T, 3>();
  expect_refusal(
      [&] {
        std::visit([&](const auto& kv) { pagoda::check(in_lists.scene().exec(), plan, q, kv, there, 2); },
                   in_lists.cache());
      },
      {"pagoda::check: entry 2 of the list needs 2 pages, and page_indptr gives its sequence 1", "as many or more"});
}

// The public functions take Views.
TEST_F(ListErrors, NoneOfTheseInAGoodCall) {
  const auto plan = scene.plan(bounds_of(list));
  auto& s         = scene.scene();
  const auto out  = s.out().template view<T, 3>();
  const auto lse  = s.lse().template view<float, 2>();
  const auto states =
      EntryStates{Kokkos::View<float***, Space>("states", 2, 4, 64), Kokkos::View<float**, Space>("lse", 2, 4)};
  static_cast<void>(scene.problem(there, 2));
  s.note(plan);
  std::visit(
      [&](const auto& kv) {
        decode_entries(scene.exec(), plan, s.q().template view<const T, 3>(), kv, there, out, lse, states);
      },
      scene.cache());
  merge_entries(scene.exec(), plan, there, states, out, lse);
  EXPECT_TRUE(scene.right());
}

}  // namespace
}  // namespace pagoda::test
