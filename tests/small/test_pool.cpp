// SPDX-License-Identifier: Apache-2.0
#include "tests/pool/pool_decode.hpp"

/// Pools: what they write, decodes of their sequences, and decodes that read shared pages once.
namespace pagoda::test {
namespace {

template <class Param>
struct SmallPool : testing::Test {
  using Pool = PagedPool<typename Param::type, typename Param::space>;
  static inline const PoolOptions options{
      .num_kv_heads = 1, .head_dim = 64, .max_seq_len = 128, .max_sequences = 4, .page_size = 16, .num_q_heads = 4};
};
TYPED_TEST_SUITE(SmallPool, SpacesAndTypes, Names);

TYPED_TEST(SmallPool, WritesAndDecodes) {
  Driven<typename TestFixture::Pool> d(TestFixture::options);
  const int a = d.admit(35), b = d.admit(0);
  d.append({b, a}, {3, 1});
  const int c = d.fork(a, 20);
  d.append(c, 2);
  expect_holds(d.pool, d.exec, d.model);
  expect_decodes(d, {c, a, b});
}

TYPED_TEST(SmallPool, SharedPages) {
  Driven<typename TestFixture::Pool> d(TestFixture::options);
  d.pool.set_rates(eager_rates());
  const int a = d.admit(83), b = d.fork(a, 65), c = d.fork(b);
  d.append({a, b, c}, {1, 7, 2});
  expect_decodes(d, {b, a, c});
  const bool packed = d.pool.prefix_report().plain_because == nullptr;
  EXPECT_EQ(packed, (!std::is_same_v<typename TypeParam::type, double>)) << "pools of fp64 decode no lists";
}

}  // namespace
}  // namespace pagoda::test
