// SPDX-License-Identifier: Apache-2.0
#include "tests/support/elements.hpp"

#include <gtest/gtest.h>

#include <string>

namespace pagoda::test {
namespace {

static_assert(dtype_v<double> == DType::fp64 && dtype_v<const float> == DType::fp32);
static_assert(dtype_v<half_t> == DType::fp16 && dtype_v<const bfloat16_t> == DType::bf16);
static_assert(dtype_v<fp8_e4m3_t> == DType::fp8_e4m3 && dtype_v<const fp8_e5m2_t> == DType::fp8_e5m2);
static_assert(dtype_v<std::int8_t> == DType::int8 && dtype_v<const int4x2_t> == DType::int4);
static_assert(is_quantized_v<fp8_e4m3_t> && is_quantized_v<int4x2_t> && !is_quantized_v<half_t>);
static_assert(dims_per_element_v<int4x2_t> == 2 && dims_per_element_v<std::int8_t> == 1);
static_assert(size_of(DType::fp8_e4m3) == 1 && size_of(DType::fp8_e5m2) == 1 && size_of(DType::int8) == 1);
static_assert(size_of(DType::int4) == sizeof(int4x2_t), "of an element, not of a dim");
static_assert(std::is_same_v<accumulator_t<std::int8_t>, float> && std::is_same_v<accumulator_t<int4x2_t>, float>);
static_assert(Element<float> && Element<const half_t> && !Element<int> && !Element<long double>);
static_assert(std::is_same_v<accumulator_t<double>, double> && std::is_same_v<accumulator_t<float>, float>);
static_assert(std::is_same_v<accumulator_t<half_t>, float> && std::is_same_v<accumulator_t<bfloat16_t>, float>);
#if defined(KOKKOS_ENABLE_CUDA)
static_assert(dtype_v<__half> == DType::fp16 && dtype_v<__nv_bfloat16> == DType::bf16);
static_assert(dtype_v<__nv_fp8_e4m3> == DType::fp8_e4m3 && dtype_v<__nv_fp8_e5m2> == DType::fp8_e5m2);
#endif

// The enum and the traits agree with the rows of the table.
TEST(Types, EveryRowOfTheTable) {
  int code = 0;
#define PAGODA_TEST_ROW(name, T, bits, dims, ...)            \
  EXPECT_EQ(static_cast<int>(DType::name), code++) << #name; \
  EXPECT_STREQ(name_of(DType::name), #name);                 \
  EXPECT_EQ(dtype_v<T>, DType::name);                        \
  EXPECT_EQ(dims_per_element_v<T>, dims);                    \
  EXPECT_EQ(size_of(DType::name), static_cast<int>(sizeof(T))) << "of an element, not of a dim";
  PAGODA_FOR_EACH_TYPE(PAGODA_TEST_ROW)
#undef PAGODA_TEST_ROW
  EXPECT_STREQ(name_of(static_cast<DType>(code)), "unknown");
}

// 1 + u is the tie that goes to 1; anything more goes up, by two of u.
TEST(Types, UnitRoundoff) {
  for (const DType type : {DType::fp32, DType::fp16, DType::bf16}) {
    const double u = unit_roundoff(type);
    EXPECT_EQ(rounded(1 + u, type), 1) << name_of(type);
    EXPECT_EQ(rounded(1 + 1.01 * u, type), 1 + 2 * u) << name_of(type);
  }
  EXPECT_EQ(fp8_e4m3_t(static_cast<float>(1 + unit_roundoff(DType::fp8_e4m3))), 1.0f);
  EXPECT_EQ(fp8_e4m3_t(static_cast<float>(1 + 1.01 * unit_roundoff(DType::fp8_e4m3))), 1.125f);
  EXPECT_EQ(fp8_e5m2_t(static_cast<float>(1 + unit_roundoff(DType::fp8_e5m2))), 1.0f);
  EXPECT_EQ(fp8_e5m2_t(static_cast<float>(1 + 1.01 * unit_roundoff(DType::fp8_e5m2))), 1.25f);
  EXPECT_EQ(1 + unit_roundoff(DType::fp64), 1);
  EXPECT_NE(1 + 2 * unit_roundoff(DType::fp64), 1);
}

}  // namespace
}  // namespace pagoda::test
