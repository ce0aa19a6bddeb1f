// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/decode.hpp"
#include "tests/support/latent.hpp"
#include "tests/support/refusal.hpp"
#include "tests/support/scene.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

/// The common part of the tests of the hand-tuned kernels.
namespace pagoda::test {

/// Alone of the quantized types, their tokens may have scales of their own in the hand-tuned kernels.
template <class T>
inline constexpr bool is_integer_v = std::is_same_v<T, std::int8_t> || std::is_same_v<T, int4x2_t>;
template <class T>
inline constexpr bool has_tuned =
    std::is_same_v<T, float> || std::is_same_v<T, half_t> || std::is_same_v<T, bfloat16_t> ||
    std::is_same_v<T, fp8_e4m3_t> || std::is_same_v<T, fp8_e5m2_t> || is_integer_v<T>;

/// The types of a list that have hand-tuned kernels; if there are none, one other type, whose tests are skipped, as
/// GoogleTest has no empty lists.
template <class... P>
struct Kept {};
template <class... Q>
Kept<Q...> keep(Kept<Q...>) {
  return {};
}
template <class... Q, class First, class... Rest>
auto keep(Kept<Q...>, First, Rest... rest) {
  if constexpr (has_tuned<typename First::type>) {
    return keep(Kept<Q..., First>{}, rest...);
  } else {
    return keep(Kept<Q...>{}, rest...);
  }
}
template <class... Q>
testing::Types<Q...> as_types(Kept<Q...>);
[[maybe_unused]] testing::Types<On<Kokkos::Cuda, AnyType>> as_types(Kept<>);
template <class... P>
auto tuned_types(testing::Types<P...>) -> decltype(as_types(keep(Kept<>{}, P{}...)));
using TunedTypes = decltype(tuned_types(
    typename lists::Join<lists::Plain::of<Kokkos::Cuda>, lists::Quantized::of<Kokkos::Cuda>>::type{}));

template <class Param>
struct Tuned : testing::Test {
  using Element = typename Param::type;

  void SetUp() override {
    if (!has_tuned<Element>) GTEST_SKIP() << "this build has none of the types that there are hand-tuned kernels for";
  }

  /// Pages that are not of a multiple of 16 tokens.
  static bool takes_small_pages() { return !is_integer_v<Element>; }
  /// A shape that the kernels support: queries of the cache's type, or fp16 for quantized caches, and scales that all
  /// tokens share except in integer caches.
  static Shape taken(Shape shape) {
    if (is_quantized_v<Element>) {
      shape.head_dim = 128;
      shape.q_type   = DType::fp16;
      shape.k_scales = Scales::per_head, shape.v_scales = Scales::per_tensor;
      if (is_integer_v<Element>) shape.k_scales = shape.v_scales = Scales::per_token_and_head;
    }
    return shape;
  }
  static void expect_right(const Shape& asked, const Placement& placement = {}) {
    const Shape shape = taken(asked);
    const Sample<Element> sample(shape);
    Scene<Kokkos::Cuda, Element> scene(sample, placement);
    for (const std::string backend : {"tuned", "generic"}) {
      scene.options().backend = backend;
      const auto plan         = scene.plan();
      EXPECT_EQ(plan.backend(), backend);
      for (int call = 0; call < 2; ++call) {
        scene.poison_outputs();
        scene.decode(plan);
        EXPECT_TRUE(scene.right()) << backend << ", call " << call << ": " << describe(shape) << "; "
                                   << describe(placement);
      }
    }
  }
  /// One plan, while the lengths change on the device. shape: of the longest.
  static void expect_right_as_lengths_change(Shape shape, const Placement& placement) {
    // A sample draws the scales of single tokens for all sequences in turn, so they would change with the lengths.
    if (shape.k_scales == Scales::per_token_and_head)
      shape.k_scales = Scales::per_head, shape.v_scales = Scales::per_tensor;
    const Sample<Element> longest(shape);
    Scene<Kokkos::Cuda, Element> scene(longest, placement);
    scene.options().backend = "tuned";
    const auto plan         = scene.plan();
    for (const std::vector<int>& lengths :
         {std::vector<int>{3000, 40, 700}, {1, 0, 3}, {0, 0, 0}, {700, 40, 700}, {16, 16, 16}, {3000, 0, 0}}) {
      scene.set_lengths(lengths);
      scene.poison_outputs();
      scene.decode(plan);
      Shape now   = shape;
      now.lengths = lengths;
      EXPECT_TRUE(scene.right(Sample<Element>(now))) << describe(now);
    }
  }
  static void expect_same_bits(const Shape& shape, const Placement& placement) {
    const Sample<Element> sample(shape);
    Scene<Kokkos::Cuda, Element> scene(sample, placement);
    scene.options().backend = "tuned";
    const auto plan         = scene.plan();
    scene.decode(plan);
    EXPECT_TRUE(scene.right());
    const auto first = scene.results();
    for (int i = 0; i < 20; ++i) {
      scene.poison_outputs();
      scene.decode(plan);
      ASSERT_EQ(scene.results(), first) << "call " << i;
    }
  }
  static void expect_tuned_refused(const Shape& shape, const Placement& placement, const char* reason) {
    const Sample<Element> sample(shape);
    Scene<Kokkos::Cuda, Element> scene(sample, placement);
    scene.options().backend = "tuned";
    expect_refusal([&] { scene.plan(); }, {"does not support this problem: ", reason});
  }
};

/// The kernels for many query rows per KV head.
template <class Param>
struct TunedMany : Tuned<Param> {
  void SetUp() override {
    Tuned<Param>::SetUp();
    using T = typename Param::type;
    if (!std::is_same_v<T, half_t> && !std::is_same_v<T, bfloat16_t>) GTEST_SKIP() << "not a 16-bit type";
    if (!tuned::Device::current().sm90a) GTEST_SKIP() << "needs a card of sm_90";
  }
  static Shape of_tokens(Shape shape, int count, bool causal = true) {
    shape.query_lens.assign(shape.lengths.size(), count), shape.causal = causal;
    return shape;
  }
  /// One of each kind, with few rows and with many.
  static std::vector<Shape> shapes(const std::vector<int>& lengths) {
    return {latent_shape(16, lengths),
            latent_shape(128, lengths),
            {.lengths = lengths, .num_q_heads = 16, .num_kv_heads = 1, .head_dim = 128},
            of_tokens({.lengths = lengths, .num_q_heads = 8, .num_kv_heads = 2, .head_dim = 64}, 3),
            of_tokens({.lengths = lengths, .num_q_heads = 32, .num_kv_heads = 2, .head_dim = 128}, 8)};
  }
  static constexpr Placement pages_of_64{.layout = Layout::paged, .page_size = 64};
};
}  // namespace pagoda::test
