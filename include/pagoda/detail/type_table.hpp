// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The element types of KV caches, a row for each. Whatever else lists the types is made from these rows: the enum
/// DType and its facts (types.hpp), the dispatch, CMake's PAGODA_TYPES (cmake/PagodaTypes.cmake reads this file), the
/// lists of typed tests, and README's table. The order of the rows gives the codes of DType: append new types.
///
///   name       of the type in DType, PAGODA_TYPES, error texts and kernel labels
///   T          the C++ type of an element, in namespace pagoda
///   bits       of a number
///   dims       numbers in an element
///   roundoff   half the distance from 1 to the next number
///   nan        whether there is a NaN
///   scales     of floats: none (a plain type), optional or required; those of blocks of dims do not count. in_rows:
///              rows have a format of their own, with their scales in it; an element is a byte (row_formats.hpp)
///   block      dims of a row that share a block scale; 0: there are no block scales. They are required.
///   S          the C++ type of a block scale; void: there are none
///   deviation  of the numbers that tests and benchmarks store: most of the range is used
///   holds      for README
// clang-format off: a row is a line, for those who read it and for CMake
#define PAGODA_FOR_EACH_TYPE(X) \
  X(fp64,     double,      64, 1, 0x1p-53, true,  none,     0, void, 1.0f,  "IEEE binary64") \
  X(fp32,     float,       32, 1, 0x1p-24, true,  none,     0, void, 1.0f,  "IEEE binary32") \
  X(fp16,     half_t,      16, 1, 0x1p-11, true,  none,     0, void, 1.0f,  "IEEE binary16") \
  X(bf16,     bfloat16_t,  16, 1, 0x1p-8,  true,  none,     0, void, 1.0f,  "the upper half of a binary32") \
  X(fp8_e4m3, fp8_e4m3_t,   8, 1, 0x1p-4,  true,  optional, 0, void, 16.0f, "OCP E4M3, up to 448 (conversion rounds to nearest even and saturates)") \
  X(fp8_e5m2, fp8_e5m2_t,   8, 1, 0x1p-3,  true,  optional, 0, void, 16.0f, "OCP E5M2, up to 57344 (conversion rounds to nearest even and saturates)") \
  X(int8,     std::int8_t,  8, 1, 0.5,     false, required, 0, void, 40.0f, "-128 to 127") \
  X(int4,     int4x2_t,     4, 2, 0.5,     false, required, 0, void, 2.5f,  "two dims, -8 to 7, the even one in the lower half") \
  X(mxfp4,    mxfp4x2_t,    4, 2, 0.25,    false, none,    32, e8m0_t, 2.0f, "two dims of OCP E2M1, up to 6, the even one in the lower half") \
  X(nvfp4,    nvfp4x2_t,    4, 2, 0.25,    false, required, 16, fp8_e4m3_t, 2.0f, "two dims of OCP E2M1, up to 6, the even one in the lower half") \
  X(fp8_ds_mla, fp8_ds_mla_t, 8, 1, 0x1p-4, true, in_rows, 0, void, 16.0f, "a byte of a row of 656 bytes, a latent token: 512 dims of OCP E4M3, a float for 128 of them each, 64 dims of bf16")
// clang-format on
