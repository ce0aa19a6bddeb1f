// SPDX-License-Identifier: Apache-2.0
#include "tests/support/array.hpp"
#include "tests/support/spaces.hpp"

#include <pagoda/merge.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <string>

namespace pagoda::test {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr int tokens = 3, heads = 4;

/// n states of rows (token, head), in memory of a space, and their union. Some states are empty (lse -infinity), all of
/// them in the last row; the output of an empty state is NaN, because it must not be read.
template <class Space>
struct States {
  int n, dims;
  Array<Space> out, lse;

  States(int states, int d, DType type, DType lse_type, Strides strides = Strides::dense, unsigned seed = 1)
      : n(states),
        dims(d),
        out(type, {states, tokens, heads, d}, strides),
        lse(lse_type, {states, tokens, heads}, strides) {
    std::mt19937 engine(seed + 97 * states);
    std::normal_distribution<double> normal;
    for (int i = 0; i < n; ++i) {
      for (int t = 0; t < tokens; ++t) {
        for (int h = 0; h < heads; ++h) {
          const bool empty = (t == tokens - 1 && h == heads - 1) || (n > 2 && engine() % 4 == 0);
          lse.set({i, t, h}, empty ? -infinity : 4 * normal(engine) + (h == 0 ? 1e4 : h == 1 ? -1e4 : 0));
          for (int x = 0; x < dims; ++x) out.set({i, t, h, x}, empty ? std::nan("") : normal(engine));
        }
      }
    }
    out.upload(Space()), lse.upload(Space());
  }

  template <class T>
  auto outs() const {
    return out.template view<const T, 4>();
  }
  template <class L>
  auto lses() const {
    return lse.template view<const L, 3>();
  }
};

/// The merged rows in double, from the stored numbers.
struct Union {
  std::vector<double> out;
  double lse, norm = 0, largest = 0;

  template <class Space>
  Union(const States<Space>& s, int t, int h) : out(s.dims, 0.0) {
    double most = -infinity, sum = 0;
    for (int i = 0; i < s.n; ++i) most = std::max(most, s.lse.get({i, t, h}));
    for (int i = 0; i < s.n && most > -infinity; ++i) sum += std::exp(s.lse.get({i, t, h}) - most);
    lse = most > -infinity ? most + std::log(sum) : -infinity;
    for (int i = 0; i < s.n; ++i) {
      const double weight = std::exp(s.lse.get({i, t, h}) - lse);
      if (!(weight > 0)) continue;
      largest = std::max(largest, std::abs(s.lse.get({i, t, h})));
      for (int d = 0; d < s.dims; ++d) {
        out[d] += weight * s.out.get({i, t, h, d});
        norm += std::pow(weight * s.out.get({i, t, h, d}), 2);
      }
    }
    norm = std::sqrt(norm);
  }
};

/// Compares (token, head, dim) and (token, head) on the device with the union of the states, and looks for writes
/// around.
template <class Space>
void expect_union(const States<Space>& states, Array<Space>& out, Array<Space>* lse, const std::string& what = "") {
  out.download(Space());
  if (lse) lse->download(Space());
  const double arithmetic = unit_roundoff(states.out.type() == DType::fp64 ? DType::fp64 : DType::fp32);
  for (int t = 0; t < tokens; ++t) {
    for (int h = 0; h < heads; ++h) {
      const Union expected(states, t, h);
      const std::string where = what + " row (" + std::to_string(t) + ", " + std::to_string(h) + ")";
      double error            = 0;
      for (int d = 0; d < states.dims; ++d) error += std::pow(out.get({t, h, d}) - expected.out[d], 2);
      // A weight has the rounding error of its exponent, which is as large as the log-sum-exps.
      const double weights = arithmetic * (2 + expected.largest);
      EXPECT_LE(std::sqrt(error), 2 * (unit_roundoff(out.type()) + weights) * expected.norm) << where;
      if (!lse) continue;
      const double got = lse->get({t, h});
      if (expected.lse == -infinity) {
        EXPECT_EQ(got, -infinity) << where;
      } else {
        const double rounding = std::max(arithmetic, unit_roundoff(lse->type()));
        EXPECT_NEAR(got, expected.lse, 2 * rounding * (2 + std::abs(expected.lse))) << where;
      }
    }
  }
  EXPECT_TRUE(out.untouched_around() && (!lse || lse->untouched_around())) << what << ": something was written around";
}

template <class Param>
struct Merge : testing::Test {
  using Exec    = typename Param::space;
  using Value   = typename Param::type;
  using LseType = accumulator_t<Value>;

  static States<Exec> states(int n, int dims, Strides strides = Strides::dense) {
    return States<Exec>(n, dims, dtype_v<Value>, dtype_v<LseType>, strides);
  }
  static Array<Exec> out_array(int dims, Strides strides = Strides::dense, DType type = dtype_v<Value>) {
    Array<Exec> a(type, {tokens, heads, dims}, strides);
    a.upload(Exec());
    return a;
  }
  static Array<Exec> lse_array(Strides strides = Strides::dense, DType type = dtype_v<LseType>) {
    Array<Exec> a(type, {tokens, heads}, strides);
    a.upload(Exec());
    return a;
  }
};
TYPED_TEST_SUITE(Merge, SpacesAndTypes, Names);

TYPED_TEST(Merge, AnyNumberOfStates) {
  using T = typename TestFixture::Value;
  using L = typename TestFixture::LseType;
  for (const int n : {1, 2, 3, 17, 300}) {
    for (const int dims : {1, 7, 64, 130}) {
      const auto s = this->states(n, dims);
      auto out = this->out_array(dims), lse = this->lse_array();
      pagoda::merge(typename TestFixture::Exec(), s.template outs<T>(), s.template lses<L>(), out.template view<T, 3>(),
                    lse.template view<L, 2>());
      expect_union(s, out, &lse, std::to_string(n) + " states of " + std::to_string(dims) + " dims,");
    }
  }
}

TYPED_TEST(Merge, AnyStrides) {
  using T = typename TestFixture::Value;
  using L = typename TestFixture::LseType;
  for (const Strides from : {Strides::dense, Strides::padded, Strides::left}) {
    for (const Strides to : {Strides::dense, Strides::padded, Strides::left}) {
      const auto s = this->states(5, 33, from);
      auto out = this->out_array(33, to), lse = this->lse_array(to);
      pagoda::merge(typename TestFixture::Exec(), s.template outs<T>(), s.template lses<L>(), out.template view<T, 3>(),
                    lse.template view<L, 2>());
      expect_union(s, out, &lse, std::string(name_of(from)) + " to " + name_of(to) + ",");
    }
  }
}

TYPED_TEST(Merge, WithoutLse) {
  using T      = typename TestFixture::Value;
  using L      = typename TestFixture::LseType;
  const auto s = this->states(5, 33);
  auto out     = this->out_array(33);
  pagoda::merge(typename TestFixture::Exec(), s.template outs<T>(), s.template lses<L>(), out.template view<T, 3>(),
                Kokkos::View<float**, typename TestFixture::Exec::memory_space>());
  expect_union<typename TestFixture::Exec>(s, out, nullptr);
}

TYPED_TEST(Merge, IntoAnyType) {
  using T      = typename TestFixture::Value;
  using L      = typename TestFixture::LseType;
  const auto s = this->states(5, 33);
  for (const DType type : {DType::fp64, DType::fp32, DType::fp16, DType::bf16}) {
    auto out = this->out_array(33, Strides::dense, type);
    auto lse = this->lse_array(Strides::dense, DType::fp64);
    with_type(type, [&]<class To>(To*) {
      pagoda::merge(typename TestFixture::Exec(), s.template outs<T>(), s.template lses<L>(),
                    out.template view<To, 3>(), lse.template view<double, 2>());
    });
    expect_union(s, out, &lse, pagoda::name_of(type));
  }
}

// out and lse may be state 0 itself.
TYPED_TEST(Merge, InPlace) {
  using T = typename TestFixture::Value;
  using L = typename TestFixture::LseType;
  for (const int n : {1, 2, 17}) {
    const auto before = this->states(n, 40);
    auto s            = this->states(n, 40);
    const auto outs   = s.out.template view<T, 4>();
    const auto lses   = s.lse.template view<L, 3>();
    pagoda::merge(typename TestFixture::Exec(), outs, lses,
                  Kokkos::subview(outs, 0, Kokkos::ALL, Kokkos::ALL, Kokkos::ALL),
                  Kokkos::subview(lses, 0, Kokkos::ALL, Kokkos::ALL));
    s.out.download(typename TestFixture::Exec()), s.lse.download(typename TestFixture::Exec());
    auto out = this->out_array(40), lse = this->lse_array();
    for (int t = 0; t < tokens; ++t) {
      for (int h = 0; h < heads; ++h) {
        lse.set({t, h}, s.lse.get({0, t, h}));
        for (int d = 0; d < 40; ++d) out.set({t, h, d}, s.out.get({0, t, h, d}));
        for (int i = 1; i < n; ++i)
          EXPECT_EQ(s.lse.get({i, t, h}), before.lse.get({i, t, h})) << "state " << i << " was written";
      }
    }
    out.upload(typename TestFixture::Exec()), lse.upload(typename TestFixture::Exec());
    expect_union(before, out, &lse, std::to_string(n) + " states,");
  }
}

// Merging one after the other, in any order and into the first of the two, equals merging all at once.
TYPED_TEST(Merge, TwoByTwoInAnyOrder) {
  using T         = typename TestFixture::Value;
  using L         = typename TestFixture::LseType;
  using Space     = typename TestFixture::Exec;
  const auto s    = this->states(6, 24);
  const auto outs = s.template outs<T>();
  const auto lses = s.template lses<L>();
  std::vector<int> order{0, 1, 2, 3, 4, 5};
  for (int i = 0; i < 6; ++i) {
    std::shuffle(order.begin(), order.end(), std::mt19937(i));
    // Between merges, states stay in the accumulator type, so that the rounding of many stores does not count.
    auto out = this->out_array(24, Strides::dense, dtype_v<L>), lse = this->lse_array();
    const auto to_out = out.template view<L, 3>();
    const auto to_lse = lse.template view<L, 2>();
    for (std::size_t k = 1; k < order.size(); ++k) {
      const auto next_out = Kokkos::subview(outs, order[k], Kokkos::ALL, Kokkos::ALL, Kokkos::ALL);
      const auto next_lse = Kokkos::subview(lses, order[k], Kokkos::ALL, Kokkos::ALL);
      if (k == 1) {
        pagoda::merge(Space(), Kokkos::subview(outs, order[0], Kokkos::ALL, Kokkos::ALL, Kokkos::ALL),
                      Kokkos::subview(lses, order[0], Kokkos::ALL, Kokkos::ALL), next_out, next_lse, to_out, to_lse);
      } else {
        pagoda::merge(Space(), to_out, to_lse, next_out, next_lse, to_out, to_lse);
      }
    }
    out.download(Space()), lse.download(Space());
    for (int t = 0; t < tokens; ++t) {
      for (int h = 0; h < heads; ++h) {
        const Union expected(s, t, h);
        const double u = unit_roundoff(dtype_v<L>) * (2 + expected.largest);
        double error   = 0;
        for (int d = 0; d < 24; ++d) error += std::pow(out.get({t, h, d}) - expected.out[d], 2);
        EXPECT_LE(std::sqrt(error), 5 * 2 * u * expected.norm) << "order " << i << " row " << t << " " << h;
        if (expected.lse == -infinity)
          EXPECT_EQ(lse.get({t, h}), -infinity);
        else
          EXPECT_NEAR(lse.get({t, h}), expected.lse, 5 * 2 * u);
      }
    }
  }
}

// Two states may differ in type and strides.
TYPED_TEST(Merge, TwoStatesOfTwoTypes) {
  using T        = typename TestFixture::Value;
  using Space    = typename TestFixture::Exec;
  const int dims = 20;
  for (const DType other : {DType::fp64, DType::fp32, DType::fp16, DType::bf16}) {
    Array<Space> out_a(dtype_v<T>, {tokens, heads, dims}, Strides::left),
        lse_a(DType::fp32, {tokens, heads}, Strides::padded);
    Array<Space> out_b(other, {tokens, heads, dims}, Strides::padded),
        lse_b(DType::fp64, {tokens, heads}, Strides::left);
    // The same numbers as two states of one array, of the finer type, to compare with.
    const DType finer = size_of(other) > size_of(dtype_v<T>) ? other : dtype_v<T>;
    States<Space> both(2, dims, finer == DType::fp16 || finer == DType::bf16 ? DType::fp32 : finer, DType::fp64);
    for (int t = 0; t < tokens; ++t) {
      for (int h = 0; h < heads; ++h) {
        lse_a.set({t, h}, both.lse.get({0, t, h})), lse_b.set({t, h}, both.lse.get({1, t, h}));
        both.lse.set({0, t, h}, lse_a.get({t, h}));
        for (int d = 0; d < dims; ++d) {
          out_a.set({t, h, d}, both.out.get({0, t, h, d})), out_b.set({t, h, d}, both.out.get({1, t, h, d}));
          both.out.set({0, t, h, d}, out_a.get({t, h, d})), both.out.set({1, t, h, d}, out_b.get({t, h, d}));
        }
      }
    }
    for (Array<Space>* a : {&out_a, &lse_a, &out_b, &lse_b}) a->upload(Space());
    auto out = this->out_array(dims), lse = this->lse_array();
    with_type(other, [&]<class B>(B*) {
      pagoda::merge(Space(), out_a.template view<const T, 3>(), lse_a.template view<const float, 2>(),
                    out_b.template view<const B, 3>(), lse_b.template view<const double, 2>(),
                    out.template view<T, 3>(), lse.template view<typename TestFixture::LseType, 2>());
    });
    expect_union(both, out, &lse, pagoda::name_of(other));
  }
}

// A NaN log-sum-exp makes its row NaN, a NaN in an output makes its dim NaN. No other row or dim changes.
TYPED_TEST(Merge, StatesOfNaN) {
  using T                 = typename TestFixture::Value;
  using L                 = typename TestFixture::LseType;
  using Space             = typename TestFixture::Exec;
  constexpr int dims      = 20;
  constexpr double absent = std::numeric_limits<double>::quiet_NaN();
  for (const int n : {2, 17}) {
    for (const int where : {0, n / 2, n - 1}) {
      auto s            = this->states(n, dims);
      const auto merged = [&] {
        auto out = this->out_array(dims), lse = this->lse_array();
        pagoda::merge(Space(), s.template outs<T>(), s.template lses<L>(), out.template view<T, 3>(),
                      lse.template view<L, 2>());
        out.download(Space()), lse.download(Space());
        return std::pair(out, lse);
      };
      s.lse.set({where, 0, 2}, 0.0);  // not empty, so that its output counts
      for (int d = 0; d < dims; ++d) s.out.set({where, 0, 2, d}, 1.0);
      s.out.upload(Space()), s.lse.upload(Space());
      auto right = merged();
      s.lse.set({where, 1, 3}, absent);
      s.out.set({where, 0, 2, 7}, absent);
      s.out.upload(Space()), s.lse.upload(Space());
      auto got = merged();
      for (int t = 0; t < tokens; ++t) {
        for (int h = 0; h < heads; ++h) {
          const bool row  = t == 1 && h == 3;
          const auto same = [](double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); };
          EXPECT_TRUE(same(got.second.get({t, h}), row ? absent : right.second.get({t, h})))
              << "lse of row (" << t << ", " << h << "), state " << where << " of " << n;
          for (int d = 0; d < dims; ++d) {
            const bool none = row || (t == 0 && h == 2 && d == 7);
            EXPECT_TRUE(same(got.first.get({t, h, d}), none ? absent : right.first.get({t, h, d})))
                << "dim " << d << " of row (" << t << ", " << h << "), state " << where << " of " << n;
          }
        }
      }
    }
  }
}

TYPED_TEST(Merge, NoRows) {
  using T     = typename TestFixture::Value;
  using L     = typename TestFixture::LseType;
  using Space = typename TestFixture::Exec;
  const Array<Space> outs(dtype_v<T>, {2, 0, heads, 8}, Strides::dense),
      lses(dtype_v<L>, {2, 0, heads}, Strides::dense);
  Array<Space> out(dtype_v<T>, {0, heads, 8}, Strides::dense), lse(dtype_v<L>, {0, heads}, Strides::dense);
  out.upload(Space()), lse.upload(Space());
  pagoda::merge(Space(), outs.template view<const T, 4>(), lses.template view<const L, 3>(), out.template view<T, 3>(),
                lse.template view<L, 2>());
  EXPECT_TRUE(out.unchanged(Space()) && lse.unchanged(Space()));
}

}  // namespace
}  // namespace pagoda::test
