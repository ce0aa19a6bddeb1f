// SPDX-License-Identifier: Apache-2.0
// merge_entries against sums in float64.
#include "tests/entries/list_scene.hpp"

#include <cmath>
#include <limits>
#include <numeric>
#include <random>

namespace pagoda::test {
namespace {

template <class Param>
struct MergeEntries : testing::Test {};
TYPED_TEST_SUITE(MergeEntries, Spaces, Names);

constexpr double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
constexpr int heads = 3;

/// Query tokens with these numbers of states.
template <class Space>
struct States {
  std::vector<int> counts, begin{0};
  int dims;
  Array<Space> out, lse, to, to_lse;
  std::vector<float> sinks;

  States(const std::vector<int>& of, int d, DType type, DType lse_type, DType to_type, const Arrangement& strides = {})
      : counts(of),
        dims(d),
        out(type, {std::accumulate(of.begin(), of.end(), 0), heads, d}, strides),
        lse(lse_type, {std::accumulate(of.begin(), of.end(), 0), heads}, strides),
        to(to_type, {static_cast<int>(of.size()), heads, d}, strides),
        to_lse(lse_type, {static_cast<int>(of.size()), heads}, strides) {
    std::mt19937 random(1);
    std::normal_distribution<double> normal;
    for (const int n : counts) begin.push_back(begin.back() + n);
    for (int i = 0; i < begin.back(); ++i)
      for (int h = 0; h < heads; ++h) {
        lse.set({i, h}, 2 * normal(random));
        for (int x = 0; x < dims; ++x) out.set({i, h, x}, normal(random));
      }
  }

  void expect_right() {
    const Space exec;
    out.upload(exec), lse.upload(exec), to.poison_all(exec), to_lse.poison_all(exec);
    const auto device_begin = on_device(exec, begin);
    const auto device_sinks = on_device(exec, sinks);
    detail::Problem p{{}, {}, ref_of<3>(to), ref_of<2>(to_lse)};
    p.entries.state_begin     = device_begin.data();
    p.entries.num_state_begin = static_cast<int>(begin.size());
    p.state_out = ref_of<3>(out), p.state_lse = ref_of<2>(lse);
    detail::merge_entries(exec, p, sinks.empty() ? nullptr : device_sinks.data());
    to.download(exec), to_lse.download(exec);
    EXPECT_TRUE(to.untouched_around() && to_lse.untouched_around() && out.unchanged(exec) && lse.unchanged(exec));
    const double unit =
        unit_roundoff(to.type()) + 8 * unit_roundoff(out.type() == DType::fp64 ? DType::fp64 : DType::fp32);
    for (int t = 0; t < static_cast<int>(counts.size()); ++t)
      for (int h = 0; h < heads; ++h) {
        if (counts[t] == 0) {
          EXPECT_TRUE(std::isnan(to_lse.get({t, h})) && std::isnan(to.get({t, h, dims - 1}))) << "token " << t;
          continue;
        }
        double most = sinks.empty() ? -infinity : sinks[h], sum = 0;
        bool bad = std::isnan(most);
        for (int i = begin[t]; i < begin[t + 1]; ++i)
          most = std::fmax(most, lse.get({i, h})), bad = bad || std::isnan(lse.get({i, h}));
        const double base = std::isinf(most) ? 0 : most;
        if (!sinks.empty()) sum += std::exp(sinks[h] - base);
        for (int i = begin[t]; i < begin[t + 1]; ++i) sum += std::exp(lse.get({i, h}) - base);
        const double right_lse = bad ? nan : base + std::log(sum);
        const double got_lse   = to_lse.get({t, h});
        if (std::isfinite(right_lse)) {
          EXPECT_NEAR(got_lse, right_lse, 4e-6 * (1 + std::abs(right_lse))) << "token " << t << " of " << counts[t];
        } else {
          EXPECT_TRUE(bad ? std::isnan(got_lse) : got_lse == right_lse) << got_lse << " is not " << right_lse;
        }
        for (int d = 0; d < dims; ++d) {
          double x = 0, size = 0;
          for (int i = begin[t]; i < begin[t + 1]; ++i) {
            if (lse.get({i, h}) == -infinity) continue;
            const double part = std::exp(lse.get({i, h}) - base) * out.get({i, h, d});
            x += part, size += std::abs(part);
          }
          const double got = to.get({t, h, d});
          if (bad || std::isnan(x)) {
            EXPECT_TRUE(std::isnan(got)) << "token " << t << ", dim " << d;
          } else if (sum == 0) {
            EXPECT_EQ(got, 0);
          } else {
            ASSERT_NEAR(got, x / sum, 2 * unit * size / sum + (to.type() == DType::fp16 ? 0x1p-24 : 0x1p-126))
                << "token " << t << " of " << counts[t] << " states, head " << h << ", dim " << d << " of " << dims;
          }
        }
      }
  }
};

const std::vector<int> some{1, 2, 0, 3, 4, 5, 8, 9, 0, 31};

TYPED_TEST(MergeEntries, NumbersOfStatesAndDims) {
  for (const int dims : {1, 4, 30, 64, 128, 132, 257}) {
    States<TypeParam> states(some, dims, DType::fp32, DType::fp32, DType::fp32);
    states.expect_right();
    states.sinks = {0.5f, -3, 4};
    states.expect_right();
  }
}

TYPED_TEST(MergeEntries, TypesAndStrides) {
  for (const Strides strides : {Strides::dense, Strides::padded, Strides::left})
    for (const DType type : {DType::fp64, DType::fp32, DType::fp16, DType::bf16})
      for (const DType to : {DType::fp32, DType::fp16, DType::bf16})
        for (const DType lse : {DType::fp32, DType::fp64})
          States<TypeParam>(some, 64, type, lse, to, strides).expect_right();
}

TYPED_TEST(MergeEntries, ManyRows) {
  std::vector<int> counts;
  for (int t = 0; t < 2000; ++t) counts.push_back(t % 5);
  States<TypeParam>(counts, 128, DType::fp32, DType::fp32, DType::fp16).expect_right();
}

// Outputs of empty states are not read. A row of empty states alone is 0, or its sink.
TYPED_TEST(MergeEntries, EmptyStates) {
  States<TypeParam> states({3, 6, 2, 5}, 8, DType::fp32, DType::fp32, DType::fp32);
  for (const int i : {0, 2, 4, 8, 9, 10, 11, 15})
    for (int h = 0; h < heads; ++h) {
      states.lse.set({i, h}, -infinity);
      for (int d = 0; d < 8; ++d) states.out.set({i, h, d}, nan);
    }
  states.expect_right();
  states.sinks = {0.5f, -static_cast<float>(infinity), 2};
  states.expect_right();
}

TYPED_TEST(MergeEntries, NaN) {
  States<TypeParam> states({3, 6, 2}, 8, DType::fp32, DType::fp32, DType::fp32);
  states.lse.set({1, 0}, nan), states.lse.set({8, 2}, nan);
  states.out.set({4, 1, 3}, nan);
  states.expect_right();
  states.sinks = {0, static_cast<float>(nan), 0};
  states.expect_right();
}

}  // namespace
}  // namespace pagoda::test
