// SPDX-License-Identifier: Apache-2.0
#include "tests/support/array.hpp"
#include "tests/support/refusal.hpp"
#include "tests/support/spaces.hpp"

#include <pagoda/merge.hpp>

namespace pagoda::test {
namespace {

template <class Space>
struct MergeErrors : testing::Test {
  using Extents = std::vector<std::int64_t>;
  static Array<Space> array(const Extents& extent) {
    Array<Space> a(DType::fp32, extent, Strides::dense);
    a.upload(Space());
    return a;
  }
  /// Merges arrays of these shapes: n-way if there is no second state, else two-way.
  static void refuses(const Extents& outs, const Extents& lses, const Extents& out, const Extents& lse,
                      std::initializer_list<const char*> words) {
    auto a = array(outs), b = array(lses), c = array(out), d = array(lse);
    expect_refusal(
        [&] {
          pagoda::merge(Space(), a.template view<const float, 4>(), b.template view<const float, 3>(),
                        c.template view<float, 3>(), d.template view<float, 2>());
        },
        words);
    EXPECT_TRUE(c.unchanged(Space()) && d.unchanged(Space())) << "something was written";
  }
  static void refuses_two(const Extents& out_b, const Extents& lse_b, std::initializer_list<const char*> words) {
    auto a = array({3, 4, 8}), la = array({3, 4}), b = array(out_b), lb = array(lse_b), c = array({3, 4, 8}),
         d = array({3, 4});
    expect_refusal(
        [&] {
          pagoda::merge(Space(), a.template view<const float, 3>(), la.template view<const float, 2>(),
                        b.template view<const float, 3>(), lb.template view<const float, 2>(),
                        c.template view<float, 3>(), d.template view<float, 2>());
        },
        words);
    EXPECT_TRUE(c.unchanged(Space()) && d.unchanged(Space())) << "something was written";
  }
};
TYPED_TEST_SUITE(MergeErrors, Spaces, Names);

TYPED_TEST(MergeErrors, NumbersOfStates) {
  this->refuses({2, 3, 4, 8}, {3, 3, 4}, {3, 4, 8}, {3, 4}, {"pagoda::merge", "outs has 2 states", "lses has 3"});
  this->refuses({0, 3, 4, 8}, {0, 3, 4}, {3, 4, 8}, {3, 4}, {"outs has 0 states", "1 or more"});
}

TYPED_TEST(MergeErrors, Shapes) {
  this->refuses({2, 5, 4, 8}, {2, 5, 4}, {3, 4, 8}, {3, 4}, {"axis 0", "output", "extent 5", "allowed: 3"});
  this->refuses({2, 3, 6, 8}, {2, 3, 6}, {3, 4, 8}, {3, 4}, {"axis 1", "output", "extent 6", "allowed: 4"});
  this->refuses({2, 3, 4, 7}, {2, 3, 4}, {3, 4, 8}, {3, 4}, {"axis 2", "output", "extent 7", "allowed: 8"});
  this->refuses({2, 3, 4, 8}, {2, 2, 4}, {3, 4, 8}, {3, 4}, {"axis 0", "log-sum-exp", "extent 2", "allowed: 3"});
  this->refuses({2, 3, 4, 8}, {2, 3, 5}, {3, 4, 8}, {3, 4}, {"axis 1", "log-sum-exp", "extent 5", "allowed: 4"});
  this->refuses({2, 3, 4, 8}, {2, 3, 4}, {3, 4, 8}, {3, 2}, {"axis 1 of lse", "extent 2", "allowed: 4"});
}

TYPED_TEST(MergeErrors, SecondStates) {
  this->refuses_two({3, 4, 9}, {3, 4}, {"pagoda::merge", "other states", "extent 9", "allowed: 8"});
  this->refuses_two({3, 4, 8}, {2, 4}, {"other states", "log-sum-exp", "extent 2", "allowed: 3"});
}

TYPED_TEST(MergeErrors, ArraysWithoutMemory) {
  using Memory  = typename TypeParam::memory_space;
  const auto of = [](bool given, auto... extents) {
    using View = Kokkos::View<std::conditional_t<sizeof...(extents) == 4, float****,
                                                 std::conditional_t<sizeof...(extents) == 3, float***, float**>>,
                              Memory>;
    return given ? View("test array", extents...) : View(static_cast<float*>(nullptr), extents...);
  };
  const auto refuses = [&](int missing, const char* words) {
    expect_refusal(
        [&] {
          pagoda::merge(TypeParam(), of(missing != 0, 2, 3, 4, 8), of(missing != 1, 2, 3, 4), of(missing != 2, 3, 4, 8),
                        of(true, 3, 4));
        },
        {"pagoda::merge: ", words, "a null pointer; allowed: memory for all of its elements"});
  };
  refuses(0, "the first state's output has");
  refuses(1, "the first state's log-sum-exp has");
  refuses(2, "out has");
  const auto refuses_second = [&](int missing, const char* words) {
    expect_refusal(
        [&] {
          pagoda::merge(TypeParam(), of(true, 3, 4, 8), of(true, 3, 4), of(missing != 0, 3, 4, 8),
                        of(missing != 1, 3, 4), of(true, 3, 4, 8), of(true, 3, 4));
        },
        {words});
  };
  refuses_second(0, "the array of the other states' outputs has a null pointer");
  refuses_second(1, "the array of the other states' log-sum-exps has a null pointer");
  pagoda::merge(TypeParam(), of(false, 2, 0, 4, 8), of(false, 2, 0, 4), of(false, 0, 4, 8), of(false, 0, 4));
}

}  // namespace
}  // namespace pagoda::test
