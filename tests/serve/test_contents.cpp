// SPDX-License-Identifier: Apache-2.0
#include "bench/serve/contents.hpp"
#include "bench/serve/workload.hpp"

#include "tests/support/spaces.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

namespace pagoda::serve {
namespace {

/// Moments of many numbers.
struct Moments {
  double mean, variance, skew, kurtosis;
};

Moments moments(const std::vector<float>& x) {
  const auto n = static_cast<double>(x.size());
  Moments m{};
  for (const float v : x) m.mean += v / n;
  double third = 0, fourth = 0;
  for (const float v : x) {
    const double d = v - m.mean;
    m.variance += d * d / n, third += d * d * d / n, fourth += d * d * d * d / n;
  }
  m.skew     = third / std::pow(m.variance, 1.5);
  m.kurtosis = fourth / (m.variance * m.variance);
  return m;
}

TEST(Contents, IsNormal) {
  constexpr int n = 1 << 20;
  std::vector<float> x(n);
  for (int i = 0; i < n; ++i) x[i] = normal(42, static_cast<std::uint32_t>(i));
  const Moments m      = moments(x);
  const double one_mil = 1 / std::sqrt(static_cast<double>(n));
  EXPECT_NEAR(m.mean, 0, 5 * one_mil);
  EXPECT_NEAR(m.variance, 1, 5 * std::sqrt(2.0) * one_mil);
  EXPECT_NEAR(m.skew, 0, 5 * std::sqrt(6.0) * one_mil);
  EXPECT_NEAR(m.kurtosis, 2.97, 5 * std::sqrt(24.0) * one_mil);
  for (const double at : {-2.5, -1.0, -0.3, 0.0, 0.7, 1.9, 3.0}) {
    double below = 0;
    for (const float v : x) below += v < at ? 1.0 / n : 0;
    EXPECT_NEAR(below, 0.5 * std::erfc(-at / std::sqrt(2.0)), 0.0008 + 2.5 * one_mil) << at;
  }
}

TEST(Contents, NeighboursAreIndependent) {
  constexpr int n = 1 << 18;
  double next = 0, key = 0, squares = 0;
  for (std::uint32_t i = 0; i < n; ++i) {
    next += normal(7, i) * normal(7, i + 1) / n;
    key += normal(7, i) * normal(8, i) / n;
    squares += (normal(7, i) * normal(7, i) - 1) * (normal(7, i + 1) * normal(7, i + 1) - 1) / n;
  }
  const double limit = 5 / std::sqrt(static_cast<double>(n));
  EXPECT_NEAR(next, 0, limit);
  EXPECT_NEAR(key, 0, limit);
  EXPECT_NEAR(squares, 0, 2 * limit);
}

Trace two_requests() {
  Trace t;
  t.block_tokens = 4;
  t.requests     = {{0, 6, 3, {100, 7}}, {0, 8, 3, {100, 8}}};
  return t;
}

TEST(Contents, EqualIdsAreEqualTokensAndOthersAreNot) {
  const Workload<Kokkos::HostSpace> w(two_requests(), find_model("SmolLM2-135M"), 1);
  const Contents a = w.on_host(0), b = w.on_host(1), again = w.on_host(2);
  for (int t = 0; t < 4; ++t) EXPECT_EQ(a.row(Part::key, t, 1), b.row(Part::key, t, 1));  // block 100
  EXPECT_NE(a.row(Part::key, 4, 1), b.row(Part::key, 4, 1));                              // blocks 7 and 8
  EXPECT_EQ(a.row(Part::value, 5, 2), again.row(Part::value, 5, 2));  // the same request later: the same prompt,
  EXPECT_NE(a.row(Part::value, 6, 2), again.row(Part::value, 6, 2));  // but it generates something else
  EXPECT_NE(a.row(Part::query, 2, 0), b.row(Part::query, 2, 0));      // queries differ between requests

  std::set<std::uint64_t> keys;
  int rows = 0;
  for (std::int64_t number : {0, 1})
    for (const Part part : {Part::key, Part::value, Part::query})
      for (int token = number == 0 || part == Part::query ? 0 : 4; token < 9; ++token)
        for (int head = 0; head < 3; ++head, ++rows) keys.insert(w.on_host(number).row(part, token, head));
  EXPECT_EQ(static_cast<int>(keys.size()), rows);  // different tokens have different rows
  EXPECT_NE(Workload<Kokkos::HostSpace>(two_requests(), find_model("SmolLM2-135M"), 2).on_host(0).row(Part::key, 0, 0),
            a.row(Part::key, 0, 0));
}

template <class On>
class Fill : public testing::Test {};
TYPED_TEST_SUITE(Fill, test::SpacesAndTypes, test::Names);

TYPED_TEST(Fill, DeviceAndHostAgreeToTheLastBit) {
  using Space = typename TypeParam::space;
  using T     = typename TypeParam::type;
  using Rows  = Kokkos::View<T***, Kokkos::LayoutRight, typename Space::memory_space>;
  const Space exec;
  const Workload<typename Space::memory_space> w(two_requests(), find_model("SmolLM2-135M"), 5);
  constexpr int tokens = 7, heads = 3, dim = 65, first = 2;
  const Rows prompt("prompt", tokens, heads, dim), listed("listed", 2, heads, dim);

  fill_rows(exec, Part::value, PromptTokens{w.on_device(1), first}, prompt);
  const Kokkos::View<Token*, typename Space::memory_space> list("list", 2);
  const std::vector<Token> chosen{{w.on_device(0), 8}, {w.on_device(1), 3}};
  Kokkos::deep_copy(list, Kokkos::View<const Token*, Kokkos::HostSpace>(chosen.data(), 2));
  fill_rows(exec, Part::query, ListedTokens<typename Space::memory_space>{list}, listed);
  exec.fence();

  const auto expect_same = [&](const auto& rows, int r, const Contents& contents, Part part, int token) {
    for (int h = 0; h < heads; ++h)
      for (int d = 0; d < dim; ++d) {
        const T expected(normal(contents.row(part, token, h), static_cast<std::uint32_t>(d)));
        EXPECT_EQ(static_cast<double>(rows(r, h, d)), static_cast<double>(expected)) << r << ", " << h << ", " << d;
      }
  };
  const auto p = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), prompt);
  for (int r = 0; r < tokens; ++r) expect_same(p, r, w.on_host(1), Part::value, first + r);
  const auto l = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), listed);
  expect_same(l, 0, w.on_host(0), Part::query, 8);
  expect_same(l, 1, w.on_host(1), Part::query, 3);
}

}  // namespace
}  // namespace pagoda::serve
