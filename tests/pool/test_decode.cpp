// SPDX-License-Identifier: Apache-2.0
#include "tests/pool/pool_model.hpp"

#include <pagoda/reference.hpp>

#include <cmath>

namespace pagoda::test {
namespace {

template <class Pool>
struct PoolDecode : testing::Test {};
TYPED_TEST_SUITE(PoolDecode, Pools, PoolNames);

/// Decodes `slots` through the pool and compares with the reference over the model.
template <class Pool>
void expect_decodes(Driven<Pool>& d, const std::vector<int>& slots) {
  using T         = typename Pool::value_type;
  using Space     = typename Pool::execution_space;
  using Memory    = typename Space::memory_space;
  const auto o    = d.pool.options();
  const int heads = d.pool.plan().state().num_q_heads, group = heads / o.num_kv_heads;
  const int batch = static_cast<int>(slots.size());
  // Queries are rows like keys, of tokens that no sequence holds.
  std::vector<int> query_tokens;
  for (int b = 0; b < batch; ++b) query_tokens.push_back(-1 - b);
  const auto q = make_rows<Space, T>(d.exec, query_tokens, heads, o.head_dim, false);
  Kokkos::View<T***, Memory> out("out", batch, heads, o.head_dim_v);
  Kokkos::View<float**, Memory> lse("lse", batch, heads);
  d.pool.decode(d.exec, slots, q, out, lse);
  d.exec.fence();
  const auto out_host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), out);
  const auto lse_host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), lse);

  for (int b = 0; b < batch; ++b) {
    const auto& tokens = d.model.at(slots[b]);
    const int length   = static_cast<int>(tokens.size());
    for (int h = 0; h < heads; ++h) {
      std::vector<double> query(o.head_dim);
      for (int i = 0; i < o.head_dim; ++i) query[i] = element(query_tokens[b], h, i, false);
      const auto read = [&](bool value) {
        return [&, value](int t, std::span<double> row) {
          for (std::size_t i = 0; i < row.size(); ++i)
            row[i] = element(tokens[t], h / group, static_cast<int>(i), value);
        };
      };
      const auto row = reference::attend(query, length, length - 1, o.head_dim_v, read(false), read(true),
                                         {.softmax_scale = 1 / std::sqrt(static_cast<double>(o.head_dim))});
      if (length == 0) {
        EXPECT_EQ(static_cast<double>(lse_host(b, h)), row.lse);
        continue;
      }
      const double allowed = reference::tolerance(row, dtype_v<T>, dtype_v<T>, dtype_v<accumulator_t<T>>);
      double error = 0, size = 0;
      for (int i = 0; i < o.head_dim_v; ++i) {
        error += std::pow(static_cast<double>(out_host(b, h, i)) - row.out[i], 2);
        size += std::pow(row.out[i], 2);
      }
      EXPECT_LE(std::sqrt(error), allowed * std::sqrt(size)) << "entry " << b << " head " << h;
      EXPECT_NEAR(lse_host(b, h), row.lse, 1e-5 * (1 + std::abs(row.lse)) + allowed);
    }
  }
}

TYPED_TEST(PoolDecode, FollowsTheSequences) {
  for (const auto order : {KVOrder::NHD, KVOrder::HND}) {
    for (const int head_dim : {64, 7}) {
      Driven<TypeParam> d({.num_kv_heads  = 2,
                           .head_dim      = head_dim,
                           .head_dim_v    = 32,
                           .max_seq_len   = 700,
                           .max_sequences = 5,
                           .page_size     = 16,
                           .order         = order,
                           .num_q_heads   = 6});
      const int a = d.admit(500), b = d.admit(17), c = d.admit(0);
      expect_decodes(d, {a, b, c});
      for (int i = 0; i < 3; ++i) {
        d.append({b, a}, {1, 1});
        expect_decodes(d, {a, b, c});
      }
      const int e = d.fork(a, 400);
      d.append({e, a}, {20, 1});
      expect_decodes(d, {e, a});
      expect_decodes(d, {a});
      d.release(a);
      const int f = d.admit(33);  // where a was
      expect_decodes(d, {f, c, b, e});
      expect_decodes(d, {b, b, f});
      expect_decodes(d, {});
    }
  }
}

// Options of the plan reach the decode: the last four tokens only.
TYPED_TEST(PoolDecode, PreparedWithOptions) {
  Driven<TypeParam> d({.num_kv_heads = 1, .head_dim = 16, .max_seq_len = 40, .max_sequences = 2, .page_size = 3});
  const int a = d.admit(30);
  d.pool.prepare(d.exec, {.num_q_heads = 1, .window_left = 3});
  Driven<TypeParam> last(
      {.num_kv_heads = 1, .head_dim = 16, .max_seq_len = 40, .max_sequences = 2, .page_size = 3, .num_q_heads = 1});
  last.next    = 27;  // tokens 27 .. 30 are the last four of a
  const int b  = last.admit(4);
  using T      = typename TypeParam::value_type;
  using Memory = typename TypeParam::memory_space;
  const auto q = make_rows<typename TypeParam::execution_space, T>(d.exec, {-1}, 1, 16, false);
  Kokkos::View<float***, Memory> windowed("out", 1, 1, 16), short_one("out", 1, 1, 16);
  d.pool.decode(d.exec, std::vector<int>{a}, q, windowed);
  last.pool.decode(last.exec, std::vector<int>{b}, q, short_one);
  d.exec.fence();
  last.exec.fence();
  const auto x = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), windowed);
  const auto y = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), short_one);
  for (int i = 0; i < 16; ++i) EXPECT_NEAR(x(0, 0, i), y(0, 0, i), 1e-5);
}

}  // namespace
}  // namespace pagoda::test
