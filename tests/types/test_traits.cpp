// SPDX-License-Identifier: Apache-2.0
#include "tests/support/elements.hpp"

#include <gtest/gtest.h>

#include <string>

namespace pagoda::test {
namespace {

constexpr DType all_types[] = {DType::fp64, DType::fp32, DType::fp16, DType::bf16};

static_assert(dtype_v<double> == DType::fp64 && dtype_v<const float> == DType::fp32);
static_assert(dtype_v<half_t> == DType::fp16 && dtype_v<const bfloat16_t> == DType::bf16);
static_assert(Element<float> && Element<const half_t> && !Element<int> && !Element<long double>);
static_assert(std::is_same_v<accumulator_t<double>, double> && std::is_same_v<accumulator_t<float>, float>);
static_assert(std::is_same_v<accumulator_t<half_t>, float> && std::is_same_v<accumulator_t<bfloat16_t>, float>);
#if defined(KOKKOS_ENABLE_CUDA)
static_assert(dtype_v<__half> == DType::fp16 && dtype_v<__nv_bfloat16> == DType::bf16);
#endif

TEST(Types, SizesAndNames) {
  for (const DType type : all_types)
    with_type(type, [&]<class T>(T*) {
      EXPECT_EQ(size_of(type), static_cast<int>(sizeof(T)));
      EXPECT_EQ(dtype_v<T>, type);
    });
  EXPECT_STREQ(name_of(DType::fp64), "fp64");
  EXPECT_STREQ(name_of(DType::fp32), "fp32");
  EXPECT_STREQ(name_of(DType::fp16), "fp16");
  EXPECT_STREQ(name_of(DType::bf16), "bf16");
}

// 1 + u is the tie that goes to 1; anything more goes up, by two of u.
TEST(Types, UnitRoundoff) {
  for (const DType type : {DType::fp32, DType::fp16, DType::bf16}) {
    const double u = unit_roundoff(type);
    EXPECT_EQ(rounded(1 + u, type), 1) << name_of(type);
    EXPECT_EQ(rounded(1 + 1.01 * u, type), 1 + 2 * u) << name_of(type);
  }
  EXPECT_EQ(1 + unit_roundoff(DType::fp64), 1);
  EXPECT_NE(1 + 2 * unit_roundoff(DType::fp64), 1);
}

}  // namespace
}  // namespace pagoda::test
