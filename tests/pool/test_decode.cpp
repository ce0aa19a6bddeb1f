// SPDX-License-Identifier: Apache-2.0
#include "tests/pool/pool_decode.hpp"

#include <pagoda/merge.hpp>

namespace pagoda::test {
namespace {

template <class Pool>
struct PoolDecode : testing::Test {};
TYPED_TEST_SUITE(PoolDecode, PoolsOfAllTypes, PoolNames);

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

/// Double rows and sums are rounded to 16 bits once: 1 + 2^-11 + 2^-40 lies above a tie of fp16 (and the same with 2^-8
/// of bf16), but the float nearest to it is the tie.
template <class Space>
struct RoundsOnce : testing::Test {};
TYPED_TEST_SUITE(RoundsOnce, Spaces, Names);

template <class Space, class Small>
void expect_rounded_once(double x, float above) {
  using Memory = typename Space::memory_space;
  const Space exec;
  for (const int dims : {3, 16}) {  // elements one by one, and in vectors
    const Kokkos::View<double***, Kokkos::LayoutRight, Memory> rows("rows", 1, 1, dims);
    Kokkos::deep_copy(rows, x);
    const auto expect_all = [&](const auto& there, const char* what) {
      exec.fence();
      const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), there);
      for (std::size_t i = 0; i < host.size(); ++i) EXPECT_EQ(static_cast<float>(host.data()[i]), above) << what;
    };
    if constexpr (has_kernels_v<Small>) {
      const Kokkos::View<Small****, Memory> k("k", 1, 1, 1, dims), v("v", 1, 1, 1, dims);
      write_kv(exec, k, v, on_device(exec, std::vector<std::int64_t>{0}), rows, rows);
      expect_all(k, "write_kv");
      expect_all(v, "write_kv");
    }
    if constexpr (has_kernels_v<double>) {
      PagedPool<double, Space> pool(
          exec, {.num_kv_heads = 1, .head_dim = dims, .max_seq_len = 4, .max_sequences = 1, .num_q_heads = 1});
      const int slot = pool.admit(exec, rows, rows);
      const Kokkos::View<Small***, Kokkos::LayoutRight, Memory> out("out", 1, 1, dims);
      pool.decode(exec, std::vector<int>{slot}, rows, out);
      expect_all(out, "decode");
    }
    const Kokkos::View<Small***, Kokkos::LayoutRight, Memory> merged("out", 1, 1, dims);
    const Kokkos::View<double****, Memory> outs("outs", 1, 1, 1, dims);
    const Kokkos::View<double***, Memory> lses("lses", 1, 1, 1);
    Kokkos::deep_copy(outs, x);
    merge(exec, outs, lses, merged, Kokkos::View<double**, Memory>{});
    expect_all(merged, "merge");
  }
}

TYPED_TEST(RoundsOnce, Half) { expect_rounded_once<TypeParam, half_t>(1 + 0x1p-11 + 0x1p-40, 1 + 0x1p-10f); }
TYPED_TEST(RoundsOnce, Bfloat16) { expect_rounded_once<TypeParam, bfloat16_t>(1 + 0x1p-8 + 0x1p-40, 1 + 0x1p-7f); }

}  // namespace
}  // namespace pagoda::test
