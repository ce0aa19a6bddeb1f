// SPDX-License-Identifier: Apache-2.0
#include "tests/pool/pool_model.hpp"
#include "tests/support/refusal.hpp"
#include "tests/support/watch.hpp"

#include <limits>

namespace pagoda::test {
namespace {

template <class Pool>
struct PoolErrors : testing::Test {};
TYPED_TEST_SUITE(PoolErrors, Pools, PoolNames);

/// A pool with sequences of several lengths, two of which share pages, and checks that a call fails and changes
/// nothing.
template <class Pool>
struct Refusing : Driven<Pool> {
  using Space = typename Pool::execution_space;
  using T     = typename Pool::value_type;
  explicit Refusing(const PoolOptions& options = small_pool) : Driven<Pool>(options) {}

  template <class Error, class Call>
  void refuses(const Call& call, const std::vector<std::string>& words) {
    const auto before = state_of(this->pool, this->exec);
    std::string text;
    try {
      call();
      ADD_FAILURE() << "nothing was thrown; expected words: " << words.front();
    } catch (const Error& e) {
      text = e.what();
    }
    for (const auto& word : words) EXPECT_NE(text.find(word), std::string::npos) << word << " is not in: " << text;
    EXPECT_EQ(text.find(is_paged<Pool> ? "pagoda::PagedPool" : "pagoda::ContiguousPool"), 0u) << text;
    EXPECT_TRUE(state_of(this->pool, this->exec) == before) << "after: " << text;
    expect_holds(this->pool, this->exec, this->model);
  }
  auto rows(int tokens, int heads, int dims) {
    return make_rows<Space, T>(this->exec, std::vector<int>(tokens, 1), heads, dims, false);
  }
  auto k(int tokens) { return rows(tokens, 2, 4); }
  auto v(int tokens) { return rows(tokens, 2, 3); }
};

using Slots = std::vector<int>;

TYPED_TEST(PoolErrors, FullPool) {
  Refusing<TypeParam> d;
  for (int i = 0; i < 4; ++i) d.admit(20);  // paged: all 20 pages
  d.admit(0), d.admit(0);
  for (const int n : {0, 4}) {
    d.template refuses<OutOfCapacity>([&] { d.pool.admit(d.exec, d.k(n), d.v(n)); }, {"::admit", "max_sequences = 6"});
    d.template refuses<OutOfCapacity>([&] { d.pool.admit(d.exec, n); }, {"::admit", "max_sequences = 6"});
  }
  d.template refuses<OutOfCapacity>([&] { d.pool.fork(d.exec, 0); }, {"::fork", "max_sequences = 6"});
  if (!is_paged<TypeParam>) return;
  d.release(5);
  d.template refuses<OutOfCapacity>([&] { d.pool.admit(d.exec, d.k(5), d.v(5)); },
                                    {"::admit", "num_tokens = 5", "2 pages of 4", "free: 0 of 20"});
}

TYPED_TEST(PoolErrors, TheLastOfManyDoesNotFit) {
  if (!is_paged<TypeParam>) return;
  Refusing<TypeParam> d;
  const int a = d.admit(7), b = d.fork(a), c = d.admit(23), e = d.admit(24), f = d.admit(12);
  d.append(f, 4);  // 2 + 6 + 6 + 4 of 20 pages: 2 left
  EXPECT_EQ(d.pool.free_pages(), 2);
  // A page of its own for a, one more for f; b keeps the shared page, c has room; then e is full (an argument) or b
  // needs one page too many (no room).
  d.template refuses<InvalidArgument>([&] { d.pool.append(d.exec, Slots{a, c, f, e}, d.k(4), d.v(4)); },
                                      {"::append", "counts[3] is 1", "seq_len 24", "max_seq_len"});
  d.template refuses<OutOfCapacity>(
      [&] { d.pool.append(d.exec, Slots{a, c, f, b}, Slots{1, 1, 1, 2}, d.k(5), d.v(5)); },
      {"::append", "4 sequences", "3 pages of 4", "free: 2 of 20"});
  d.template refuses<OutOfCapacity>([&] { d.pool.reserve(d.exec, Slots{a, c, f, b}, Slots{1, 1, 1, 2}); },
                                    {"::reserve"});
  // Calls that fit still succeed, on the same pages as in a pool without the refusals.
  d.append({a, c, f, b}, {1, 1, 1, 1});
  EXPECT_EQ(d.pool.free_pages(), 0);
  d.check();
}

TYPED_TEST(PoolErrors, UnknownSlots) {
  Refusing<TypeParam> d;
  const int a = d.admit(3), released = d.admit(2);
  d.release(released);
  for (const int slot : {released, 5, -1, 6, std::numeric_limits<int>::max(), std::numeric_limits<int>::min()}) {
    const std::string is = " is " + std::to_string(slot);
    d.template refuses<InvalidArgument>([&] { d.pool.release(slot); }, {"::release", "slot" + is});
    d.template refuses<InvalidArgument>([&] { d.pool.fork(d.exec, slot); }, {"::fork", "slot" + is});
    d.template refuses<InvalidArgument>([&] { d.pool.seq_len(slot); }, {"::seq_len", "slot" + is});
    d.template refuses<InvalidArgument>([&] { d.pool.block_table(slot); }, {"::block_table", "slot" + is});
    d.template refuses<InvalidArgument>([&] { d.pool.append(d.exec, Slots{a, slot}, d.k(2), d.v(2)); },
                                        {"::append", "slots[1]" + is});
    d.template refuses<InvalidArgument>([&] { d.pool.kv(d.exec, Slots{a, slot}); }, {"::kv", "slots[1]" + is});
  }
  d.template refuses<InvalidArgument>([&] { d.pool.kv(d.exec, Slots(7, a)); },
                                      {"::kv", "7 entries", "max_sequences = 6"});
  d.template refuses<InvalidArgument>([&] { d.pool.page_ref_count(-1); }, {"::page_ref_count", "page is -1"});
}

TYPED_TEST(PoolErrors, DuplicateSlot) {
  Refusing<TypeParam> d;
  const int a = d.admit(3), b = d.admit(2);
  d.template refuses<InvalidArgument>([&] { d.pool.append(d.exec, Slots{a, b, a}, d.k(3), d.v(3)); },
                                      {"::append", "slots[2] is " + std::to_string(a), "each slot once"});
}

TYPED_TEST(PoolErrors, Lengths) {
  Refusing<TypeParam> d;
  const int a = d.admit(3);
  d.template refuses<InvalidArgument>([&] { d.pool.admit(d.exec, d.k(25), d.v(25)); }, {"::admit", "25 tokens", "24"});
  d.template refuses<InvalidArgument>([&] { d.pool.admit(d.exec, 25); }, {"::admit", "num_tokens is 25", "24"});
  d.template refuses<InvalidArgument>([&] { d.pool.admit(d.exec, -1); }, {"::admit", "num_tokens is -1"});
  d.template refuses<InvalidArgument>([&] { d.pool.fork(d.exec, a, 4); }, {"::fork", "num_tokens is 4", "3"});
  d.template refuses<InvalidArgument>([&] { d.pool.fork(d.exec, a, -2); }, {"::fork", "num_tokens is -2"});
  d.template refuses<InvalidArgument>([&] { d.pool.append(d.exec, Slots{a}, Slots{22}, d.k(22), d.v(22)); },
                                      {"::append", "counts[0] is 22", "seq_len = 21"});
  d.template refuses<InvalidArgument>([&] { d.pool.append(d.exec, Slots{a}, Slots{-1}, d.k(0), d.v(0)); },
                                      {"::append", "counts[0] is -1"});
  d.template refuses<InvalidArgument>([&] { d.pool.reserve(d.exec, Slots{a}, Slots{std::numeric_limits<int>::max()}); },
                                      {"::reserve", "counts[0] is"});
  d.template refuses<InvalidArgument>([&] { d.pool.append(d.exec, Slots{a}, Slots{1, 1}, d.k(2), d.v(2)); },
                                      {"::append", "counts has 2", "1"});
  d.template refuses<InvalidArgument>([&] { d.pool.slot_mapping(a, 1, 3); },
                                      {"::slot_mapping", "1 .. 4", "seq_len = 3"});
}

TYPED_TEST(PoolErrors, MoreRowsThanAnIntCounts) {
  Refusing<TypeParam> d;
  const std::size_t many = std::size_t(1) << 31;
  const Kokkos::View<const std::int64_t*, typename TypeParam::memory_space> mapping(nullptr, many);
  const Kokkos::View<const typename TypeParam::value_type***, Kokkos::LayoutRight, typename TypeParam::memory_space> k(
      nullptr, many, 2, 4),
      v(nullptr, many, 2, 3);
  d.template refuses<InvalidArgument>([&] { d.pool.write(d.exec, mapping, k, v); },
                                      {"::write: 2147483648 tokens at once", "below 2^31"});
}

TYPED_TEST(PoolErrors, Prompts) {
  Refusing<TypeParam> d;
  const std::vector<int> ids{1, 2, 3, 4, 5, 6, 7, 8, 9}, negative{1, 2, -3}, many(25, 1);
  const std::vector<std::uint64_t> hashes{1, 2, 3};
  const auto refuses_prompt = [&](const Prompt& prompt, const std::vector<std::string>& words) {
    const auto with = [&](const std::string& call) {
      auto list = words;
      list.push_back(call);
      return list;
    };
    d.template refuses<InvalidArgument>([&] { d.pool.match(prompt); }, with("::match: prompt"));
    d.template refuses<InvalidArgument>([&] { d.pool.can_admit(prompt); }, with("::can_admit: prompt"));
    d.template refuses<InvalidArgument>([&] { d.pool.admit(d.exec, prompt); }, with("::admit: prompt"));
    d.template refuses<InvalidArgument>([&] { d.pool.admit(d.exec, prompt, d.k(3), d.v(3)); }, with("::admit: prompt"));
  };
  refuses_prompt({.token_ids = negative}, {"token_ids[2] is -3", "0 or more"});
  refuses_prompt({.token_ids = many}, {"25 tokens", "max_seq_len = 24"});
  refuses_prompt({.page_hashes = hashes, .num_tokens = 25 * d.pool.page_size()}, {"page_hashes has 3 entries"});
  refuses_prompt({.page_hashes = hashes, .num_tokens = -1}, {"num_tokens is -1", "0 or more"});
  refuses_prompt({.token_ids = ids, .page_hashes = hashes}, {"9 token_ids, 3 page_hashes", "token_ids alone"});
  refuses_prompt({.token_ids = ids, .num_tokens = 9}, {"num_tokens = 9", "token_ids alone"});
  d.template refuses<InvalidArgument>([&] { d.pool.admit(d.exec, {.token_ids = ids}, d.k(8), d.v(8)); },
                                      {"::admit: k has 8 tokens", "prompt of 9", "allowed: 9 to 9"});
  d.template refuses<InvalidArgument>([&] { d.pool.admit(d.exec, {.token_ids = ids}, d.k(9), d.v(8)); },
                                      {"::admit: v is (8, 2, 3)"});
  d.template refuses<InvalidArgument>([&] { d.pool.evict(-1); }, {"::evict: num_pages is -1"});
  d.template refuses<InvalidArgument>([&] { d.pool.is_indexed(-1); }, {"::is_indexed: page is -1"});
  d.template refuses<InvalidArgument>([&] { d.pool.named_tokens(2); }, {"::named_tokens: slot is 2"});
  d.template refuses<InvalidArgument>([&] { d.pool.name(2, ids); }, {"::name: slot is 2"});
  if (!is_paged<TypeParam>) return;

  refuses_prompt({.page_hashes = hashes, .num_tokens = 11}, {"page_hashes has 3 entries", "11 / 4 = 2"});
  const Prompt prompt{.token_ids = ids};
  const auto tokens = d.fresh(9);
  const int a       = d.pool.admit(d.exec, prompt, keys(d.pool, d.exec, tokens), values(d.pool, d.exec, tokens));
  d.model[a]        = tokens;
  d.template refuses<InvalidArgument>([&] { d.pool.admit(d.exec, prompt, d.k(10), d.v(10)); }, {"allowed: 1 to 9"});
  d.template refuses<InvalidArgument>([&] { d.pool.admit(d.exec, prompt, d.k(0), d.v(0)); },
                                      {"k has 0 tokens", "allowed: 1 to 9", "the first 8 tokens"});
  // Names: too many, negative, of another kind, or others than a page already has.
  const int b = d.admit(9), c = d.fork(b);
  d.template refuses<InvalidArgument>([&] { d.pool.name(b, std::vector<int>(10, 1)); },
                                      {"::name: token_ids has 10 entries", "up to 9"});
  d.template refuses<InvalidArgument>([&] { d.pool.name(a, std::vector<int>{1}); }, {"up to 0", "9 of the 9 tokens"});
  d.template refuses<InvalidArgument>([&] { d.pool.name(b, negative); }, {"::name: token_ids[2] is -3"});
  d.template refuses<InvalidArgument>([&] { d.pool.name(b, hashes); }, {"page_hashes has 3 entries", "up to 2"});
  d.template refuses<InvalidArgument>([&] { d.pool.name(a, hashes); }, {"was named by token ids"});
  const int e = d.admit(9);
  d.pool.name(e, std::vector<std::uint64_t>{1, 2});
  d.template refuses<InvalidArgument>([&] { d.pool.name(e, ids); }, {"gets token ids, but was named by hashes"});
  d.release(e);
  d.pool.name(b, std::vector<int>{5, 5, 5, 5, 5});
  d.template refuses<InvalidArgument>([&] { d.pool.name(c, std::vector<int>{5, 5, 5, 6}); },
                                      {"::name: page ", "already has another name"});
  d.pool.name(c, std::vector<int>{5, 5, 5, 5, 6});
  d.check();
  // No room: the message says what the prompt takes beyond the pages that it shares.
  d.admit(24);
  d.admit(20);
  auto longer = ids;
  longer.resize(24, 7);
  d.template refuses<OutOfCapacity>([&] { d.pool.admit(d.exec, {.token_ids = longer}, d.k(16), d.v(16)); },
                                    {"::admit", "num_tokens = 24", "4 pages of 4", "free: 3 of 20"});
}

TYPED_TEST(PoolErrors, Shapes) {
  Refusing<TypeParam> d;
  const int a = d.admit(3);
  d.template refuses<InvalidArgument>([&] { d.pool.admit(d.exec, d.rows(2, 3, 4), d.v(2)); },
                                      {"::admit: k is (2, 3, 4)", "(2, 2, 4)"});
  d.template refuses<InvalidArgument>([&] { d.pool.admit(d.exec, d.k(2), d.rows(2, 2, 4)); },
                                      {"::admit: v is (2, 2, 4)", "(2, 2, 3)"});
  d.template refuses<InvalidArgument>([&] { d.pool.admit(d.exec, d.k(2), d.v(1)); }, {"::admit: v is (1, 2, 3)"});
  d.template refuses<InvalidArgument>([&] { d.pool.append(d.exec, Slots{a}, d.k(2), d.v(2)); },
                                      {"::append: k is (2, 2, 4)", "(1, 2, 4)"});
  const auto mapping = on_device(d.exec, std::vector<std::int64_t>{0, 1});
  d.template refuses<InvalidArgument>([&] { d.pool.write(d.exec, mapping, d.k(3), d.v(3)); },
                                      {"::write: k is (3, 2, 4)", "(2, 2, 4)"});
}

TYPED_TEST(PoolErrors, RowsWithoutMemory) {
  using Memory = typename TypeParam::memory_space;
  using Rows   = Kokkos::View<const typename TypeParam::value_type***, Memory>;
  Refusing<TypeParam> d;
  const int a = d.admit(3);
  const Rows no_k(nullptr, 1, 2, 4), no_v(nullptr, 1, 2, 3);
  d.template refuses<InvalidArgument>([&] { d.pool.admit(d.exec, no_k, d.v(1)); },
                                      {"::admit: k has a null pointer", "memory for all of its elements"});
  d.template refuses<InvalidArgument>([&] { d.pool.append(d.exec, Slots{a}, d.k(1), no_v); },
                                      {"::append: v has a null pointer"});
  const Kokkos::View<const std::int64_t*, Memory> no_mapping(nullptr, 1);
  d.template refuses<InvalidArgument>([&] { d.pool.write(d.exec, no_mapping, d.k(1), d.v(1)); },
                                      {"::write: slot_mapping has a null pointer", "memory for 1 positions"});
}

TYPED_TEST(PoolErrors, Decode) {
  using Space  = typename TypeParam::execution_space;
  using Memory = typename Space::memory_space;
  Refusing<TypeParam> d;
  const int a = d.admit(3);
  Kokkos::View<float***, Memory> q("q", 1, 2, 4), out("out", 1, 2, 3);
  d.template refuses<InvalidArgument>([&] { d.pool.decode(d.exec, Slots{a}, q, out); }, {"no plan", "prepare"});
  d.pool.prepare(d.exec, {.num_q_heads = 2});
  d.pool.decode(d.exec, Slots{a}, q, out);
  d.template refuses<InvalidArgument>([&] { d.pool.decode(d.exec, Slots{a, 5}, q, out); },
                                      {"::decode", "slots[1] is 5", "no sequence"});
  EXPECT_THROW(d.pool.decode(d.exec, Slots{a, a}, q, out), InvalidArgument);  // q has one row
  EXPECT_THROW(d.pool.prepare(d.exec, {.num_q_heads = 3}), InvalidArgument);  // not a multiple of 2
  EXPECT_EQ(d.pool.plan().schedule().shape.num_q_heads, 2);                   // the old plan stays
}

// A refused decode launches nothing and keeps the selection of an earlier kv.
TYPED_TEST(PoolErrors, RefusedDecodeChangesNothing) {
  using Space  = typename TypeParam::execution_space;
  using Memory = typename Space::memory_space;
  Refusing<TypeParam> d;
  const int a = d.admit(3), b = d.admit(7), c = d.admit(5);
  d.pool.prepare(d.exec, {.num_q_heads = 2, .max_batch = 2});
  const auto earlier = d.pool.kv(d.exec, Slots{c, a});
  const auto reads   = [&] { return read_cache(d.exec, earlier, d.pool.options(), 24); };
  const auto before  = reads();
  ASSERT_EQ(before.lengths, (std::vector<int>{5, 3}));
  Kokkos::View<float***, Memory> q("q", 2, 2, 4), out("out", 2, 2, 3), wide("q", 2, 2, 5), many("q", 3, 2, 4);
  Kokkos::View<float**, Memory> lse("lse", 2, 2), short_lse("lse", 1, 2);
  const auto refuses = [&](const char* word, const auto& decode) {
    d.exec.fence();
    const Watch watch;
    expect_refusal(decode, {word});
    EXPECT_EQ(Watch::seen().kernels, std::vector<std::string>()) << word;
    EXPECT_TRUE(reads() == before) << word;
  };
  refuses("q has", [&] { d.pool.decode(d.exec, Slots{b, a}, wide, out, lse); });
  refuses("out is", [&] { d.pool.decode(d.exec, Slots{b, a}, q, wide, lse); });
  refuses("lse is", [&] { d.pool.decode(d.exec, Slots{b, a}, q, out, short_lse); });
  refuses("max_batch", [&] { d.pool.decode(d.exec, Slots{b, a, c}, many, out); });
  refuses("slots[1]", [&] { d.pool.decode(d.exec, Slots{b, 5}, q, out, lse); });
  refuses("q has", [&] { d.pool.decode(d.exec, Slots{b}, many, out, lse); });
  // A refused decode does not change decode's selection either.
  const auto decoded = [&] {
    d.pool.decode(d.exec, Slots{b, a}, q, out, lse);
    d.exec.fence();
    return Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), lse);
  };
  const auto sums = decoded();
  for (int h = 0; h < 2; ++h) {  // queries are zero: the sum counts tokens
    EXPECT_NEAR(sums(0, h), std::log(7.0), 1e-3);
    EXPECT_NEAR(sums(1, h), std::log(3.0), 1e-3);
  }
  EXPECT_TRUE(reads() == before) << "a decode changed what kv selects";
}

// The pool's kernel before the decode writes memory that such a decode reads before it waits.
TYPED_TEST(PoolErrors, ProgrammaticLaunch) {
  Refusing<TypeParam> d;
  d.admit(3);
  d.pool.prepare(d.exec, {.num_q_heads = 2});
  d.template refuses<InvalidArgument>([&] { d.pool.prepare(d.exec, {.num_q_heads = 4, .programmatic_launch = true}); },
                                      {"::prepare", "programmatic_launch is true", "allowed: false", "call kv"});
  EXPECT_EQ(d.pool.plan().schedule().shape.num_q_heads, 2);  // the old plan stays
  EXPECT_FALSE(d.pool.plan().schedule().programmatic_launch);
}

TYPED_TEST(PoolErrors, Lists) {
  Refusing<TypeParam> d;
  d.admit(3);
  d.template refuses<InvalidArgument>([&] { d.pool.set_rates({}); }, {"::set_rates", "there is no plan"});
  d.template refuses<InvalidArgument>([&] { d.pool.prepare(d.exec, {.num_q_heads = 2, .entries = {8, 2}}); },
                                      {"::prepare", "entries.max_entries is 8", "allowed: 0", "kv returns"});
  d.pool.prepare(d.exec, {.num_q_heads = 2});
  DeviceRates wrong;
  wrong.teams = 0;
  if (is_paged<TypeParam>) {
    expect_refusal([&] { d.pool.set_rates(wrong); }, {"teams is 0"});
  } else {
    d.template refuses<InvalidArgument>([&] { d.pool.set_rates(wrong); }, {"::set_rates", "the cache is contiguous"});
  }
  d.template refuses<InvalidArgument>([&] { d.pool.batch_pages(Slots{0, 4}); },
                                      {"::batch_pages", "slots[1] is 4", "no sequence"});
  d.template refuses<InvalidArgument>([&] { d.pool.batch_pages(Slots{0}, -1); },
                                      {"::batch_pages", "query_len is -1", "0 or more"});
}

TYPED_TEST(PoolErrors, Options) {
  const auto refuses = [](auto change, const std::string& words) {
    auto options = small_pool;
    change(options);
    try {
      const TypeParam pool(typename TypeParam::execution_space(), options);
      ADD_FAILURE() << "nothing was thrown: " << words;
    } catch (const InvalidArgument& e) {
      EXPECT_NE(std::string(e.what()).find(words), std::string::npos) << e.what();
    }
  };
  refuses([](PoolOptions& o) { o.num_kv_heads = 0; }, "num_kv_heads is 0");
  refuses([](PoolOptions& o) { o.head_dim = -1; }, "head_dim is -1");
  refuses([](PoolOptions& o) { o.head_dim_v = -1; }, "head_dim_v is -1");
  refuses([](PoolOptions& o) { o.max_seq_len = 0; }, "max_seq_len is 0");
  refuses([](PoolOptions& o) { o.max_sequences = 0; }, "max_sequences is 0");
  refuses([](PoolOptions& o) { o.num_q_heads = -1; }, "num_q_heads is -1");
  refuses([](PoolOptions& o) { o.num_q_heads = 3; }, "num_q_heads is 3");
  refuses([](PoolOptions& o) { o.share_prefixes = static_cast<SharePrefixes>(7); },
          "share_prefixes is 7; allowed: automatic (0) or never (1)");
  refuses([](PoolOptions& o) { o.max_seq_len = o.page_size = 1 << 30, o.num_kv_heads = o.head_dim = 1 << 16; },
          "allowed: fewer than 2^62 bytes");
  if (!is_paged<TypeParam>) return;
  refuses([](PoolOptions& o) { o.num_q_heads = 4, o.prefix.max_entries = -1; },
          "pagoda::PrefixDecoder: max_entries is -1");
  refuses([](PoolOptions& o) { o.num_q_heads = 4, o.prefix.max_states = -1; },
          "pagoda::PrefixDecoder: max_states is -1");
  refuses([](PoolOptions& o) { o.num_q_heads = 4, o.prefix.state_type = DType::int8; },
          "pagoda::PrefixDecoder: state_type is int8");
  refuses([](PoolOptions& o) { o.page_size = 0; }, "page_size is 0");
  refuses([](PoolOptions& o) { o.num_pages = -1; }, "num_pages is -1");
  refuses([](PoolOptions& o) { o.num_pages = 0, o.page_size = 1, o.max_seq_len = 1 << 30; }, "give num_pages");
}

TEST(WriteKV, Errors) {
  Host exec;
  Kokkos::View<half_t****, Kokkos::HostSpace> k("k", 2, 3, 2, 4), v("v", 2, 3, 2, 4);
  Kokkos::View<float****, Kokkos::HostSpace> v_float("v", 2, 3, 2, 4);
  Kokkos::View<float***, Kokkos::HostSpace> rows("rows", 2, 2, 4), wrong("rows", 2, 2, 5);
  Kokkos::View<std::int64_t*, Kokkos::HostSpace> mapping("mapping", 2), three("mapping", 3);
  EXPECT_THROW(write_kv(exec, k, v, mapping, wrong, rows), InvalidArgument);
  EXPECT_THROW(write_kv(exec, k, v, mapping, rows, wrong), InvalidArgument);
  EXPECT_THROW(write_kv(exec, k, v, three, rows, rows), InvalidArgument);
  EXPECT_THROW(write_kv(exec, k, v_float, mapping, rows, rows), InvalidArgument);
  EXPECT_THROW(write_kv(exec, k, v, mapping, rows, rows, KVOrder::HND), InvalidArgument);  // 3 heads then
  const decltype(rows) no_rows(nullptr, 2, 2, 4);
  const decltype(k) no_cache(nullptr, 2, 3, 2, 4);
  const decltype(mapping) no_mapping(nullptr, 2);
  expect_refusal([&] { write_kv(exec, k, v, mapping, no_rows, rows); }, {"pagoda::write_kv: k has a null pointer"});
  expect_refusal([&] { write_kv(exec, k, v, mapping, rows, no_rows); }, {"pagoda::write_kv: v has a null pointer"});
  expect_refusal([&] { write_kv(exec, no_cache, v, mapping, rows, rows); },
                 {"pagoda::write_kv: k_cache has a null pointer"});
  expect_refusal([&] { write_kv(exec, k, no_cache, mapping, rows, rows); },
                 {"pagoda::write_kv: v_cache has a null pointer"});
  expect_refusal([&] { write_kv(exec, k, v, no_mapping, rows, rows); },
                 {"pagoda::write_kv: slot_mapping has a null pointer", "memory for 2 positions"});
}

}  // namespace
}  // namespace pagoda::test
