// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/support/refusal.hpp"
#include "tests/support/spaces.hpp"

#include <pagoda/pagoda.hpp>

#include <gtest/gtest.h>
#include <Kokkos_Core.hpp>

#include <initializer_list>
#include <string>

namespace pagoda::test {

/// Quantized caches of two sequences of 20 tokens with 4 kv heads, and their scales, without contents. The Views are
/// destroyed before the test uses the layout, so the tested calls must not read them.
template <class Param>
struct QuantizedCaches : testing::Test {
  using Stored = typename Param::type;
  using Memory = typename Param::space::memory_space;
  using Cache  = Kokkos::View<Stored****, Kokkos::LayoutRight, Memory>;
  template <class E>
  using RowsOf = Kokkos::View<E***, Kokkos::LayoutRight, Memory>;

  static auto cache(int dims) {
    const auto bytes = [](const std::string& label) { return Kokkos::view_alloc(label, Kokkos::WithoutInitializing); };
    return ContiguousKV<Stored, Memory>(Cache(bytes("k"), 2, 20, 4, dims / dims_per_element_v<Stored>),
                                        Cache(bytes("v"), 2, 20, 4, dims / dims_per_element_v<Stored>), lengths());
  }
  static Kokkos::View<const int*, Memory> lengths() { return Kokkos::View<int*, Memory>("lengths", 2); }
  static Kokkos::View<float*, Memory> floats(int n) { return Kokkos::View<float*, Memory>("scales", n); }
  static auto floats(int pages, int tokens, int heads) {
    return Kokkos::View<float***, Kokkos::LayoutRight, Memory>("scales", pages, tokens, heads);
  }
  static Kokkos::View<float, Memory> one_float() { return Kokkos::View<float, Memory>("scale"); }
  template <class S = block_scale_t<Stored>>
  static auto blocks(int pages, int tokens, int heads, int n) {
    return Kokkos::View<S****, Kokkos::LayoutRight, Memory>(Kokkos::view_alloc("scales", Kokkos::WithoutInitializing),
                                                            pages, tokens, heads, n);
  }
  /// With the required scales.
  static auto scaled(int dims) {
    if constexpr (block_dims_v<Stored> > 0) {
      const auto each = blocks(2, 20, 4, blocks_of(dtype_v<Stored>, dims));
      auto scales     = block_scales(each, each);
      if (facts_of(dtype_v<Stored>).scales == ScaleUse::required)
        scales.per_tensor = per_tensor_scales(one_float(), one_float());
      return cache(dims).with_scales(scales);
    } else {
      return cache(dims).with_scales(per_head_scales(floats(4), floats(4)));
    }
  }
  /// A plan of the cache is refused with these words.
  static void expect_plan_refused(const CacheRef& kv, std::initializer_list<const char*> words) {
    const DecodeOptions<Memory> options{.num_q_heads = 4};
    expect_refusal([&] { detail::make_schedule(typename Param::space(), kv, options); }, words);
  }
};

}  // namespace pagoda::test
