// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/host/isa.hpp"
#include "tests/support/environment.hpp"
#include "tests/support/scene.hpp"
#include "tests/support/spaces.hpp"

#include <gtest/gtest.h>

#include <string>

/// Typed tests of host kernels in each instruction set, forced by name.
namespace pagoda::test {

using detail::HostIsa;
inline constexpr const char* isa_variable = "PAGODA_HOST_ISA";

template <class T, HostIsa which>
struct InIsa {
  using type                   = T;
  static constexpr HostIsa isa = which;
};
template <class Types>
struct InEachIsa;
template <class... On>
struct InEachIsa<testing::Types<On...>> {
  using type = typename lists::Join<
      testing::Types<>,
      testing::Types<InIsa<typename On::type, HostIsa::plain>, InIsa<typename On::type, HostIsa::avx2>,
                     InIsa<typename On::type, HostIsa::avx512>, InIsa<typename On::type, HostIsa::avx512_bf16>,
                     InIsa<typename On::type, HostIsa::amx>>...>::type;
};
struct IsaNames {
  template <class Param>
  static std::string GetName(int) {
    return std::string(name_of(dtype_v<typename Param::type>)) + "_" + name_of(Param::isa);
  }
};

template <class Param>
struct Isa : testing::Test {
  void SetUp() override {
    if (!has(Param::isa)) GTEST_SKIP() << "this build or this processor lacks " << name_of(Param::isa);
  }
};
using IsaTypes = InEachIsa<typename lists::Join<lists::Plain::of<Host>, lists::Quantized::of<Host>>::type>::type;

/// Decodes the sample in the instruction set and expects right results, and these words in the plan's description.
template <class Param, class T>
void expect_right_in(const Sample<T>& sample, const Placement& placement, const char* words = "") {
  const Environment environment(isa_variable, name_of(Param::isa));
  Scene<Host, T> scene(sample, placement);
  const auto plan = scene.plan();
#if !defined(KOKKOS_ENABLE_CUDA)  // there nvcc compiles the host's kernels
  EXPECT_NE((plan.describe() + ",").find(std::string(", instructions ") + name_of(Param::isa) + ","), std::string::npos)
      << plan.describe();
  EXPECT_NE(plan.describe().find(words), std::string::npos) << plan.describe();
#endif
  scene.decode(plan);
  EXPECT_TRUE(scene.right()) << describe(sample.shape()) << "; " << describe(placement);
}

template <class Param>
void expect_right_in(const Shape& shape, const Placement& placement, const char* words = "") {
  expect_right_in<Param>(Sample<typename Param::type>(shape), placement, words);
}

template <class T>
int whole(int dims) {
  return dims / dims_per_element_v<T> * dims_per_element_v<T>;
}

}  // namespace pagoda::test
