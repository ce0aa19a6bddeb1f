// SPDX-License-Identifier: Apache-2.0
#include "bench/decode/cases.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace pagoda::bench {
namespace {

std::vector<Case> every_case() {
  std::vector<Case> all = device_cases();
  const auto host       = host_cases();
  all.insert(all.end(), host.begin(), host.end());
  return all;
}

const Case& find(const std::vector<Case>& cases, const std::string& name) {
  const auto at = std::find_if(cases.begin(), cases.end(), [&](const Case& c) { return c.name("generic") == name; });
  if (at == cases.end()) throw std::out_of_range("there is no case " + name);
  return *at;
}

TEST(DecodeCases, NamesAreUnique) {
  for (const auto& cases : {device_cases(), host_cases()}) {
    std::set<std::string> names;
    for (const Case& c : cases) EXPECT_TRUE(names.insert(c.name("generic")).second) << c.name("generic");
  }
}

/// bench/peers/cases.py parses names in this way.
TEST(DecodeCases, NamesSayWhatTheCaseIs) {
  for (const Case& c : every_case()) {
    const std::string name = c.name("generic");
    std::vector<std::string> part;
    std::istringstream parts(name);
    for (std::string word; std::getline(parts, word, '/');) part.push_back(word);
    ASSERT_EQ(part.size(), 7u) << name;
    EXPECT_EQ(part[0] + "/" + part[1], "decode/generic") << name;
    EXPECT_EQ(part[2], name_of(c.type)) << name;
    int q_heads = 0, kv_heads = 0, dim = 0, dim_v = 0, batch = 0, length = 0, page = 0;
    const int dims = std::sscanf(part[3].c_str(), "%dx%dx%d-%d", &q_heads, &kv_heads, &dim, &dim_v);
    ASSERT_GE(dims, 3) << name;
    EXPECT_EQ(q_heads, c.num_q_heads) << name;
    EXPECT_EQ(kv_heads, c.num_kv_heads) << name;
    EXPECT_EQ(dim, c.head_dim) << name;
    EXPECT_EQ(dims == 4 ? dim_v : dim, c.head_dim_v) << name;
    ASSERT_EQ(std::sscanf(part[4].c_str(), "B%d", &batch), 1) << name;
    EXPECT_EQ(batch, c.batch()) << name;
    int query_tokens = 1;
    if (part[4].find('q') != std::string::npos) {
      ASSERT_EQ(std::sscanf(part[4].c_str(), "B%*dq%d", &query_tokens), 1) << name;
    }
    EXPECT_EQ(query_tokens, c.num_q_tokens) << name;
    int num_long = 0;
    std::sscanf(part[4].c_str(), "B%*dq%*dof%d", &num_long);
    EXPECT_EQ(num_long, c.num_long) << name;
    if (std::sscanf(part[5].c_str(), "S%d", &length) == 1) {
      for (const int of_row : c.lengths) EXPECT_EQ(of_row, length) << name;
    }
    if (part[6] != "contiguous") {
      ASSERT_EQ(std::sscanf(part[6].c_str(), "page%d", &page), 1) << name;
    }
    EXPECT_EQ(page, c.page_size) << name;
    EXPECT_EQ(part[6].ends_with("-HND"), c.by_head) << name;
  }
}

TEST(DecodeCases, AreWellFormed) {
  for (const Case& c : every_case()) {
    const std::string name = c.name("generic");
    EXPECT_GT(c.batch(), 0) << name;
    EXPECT_GT(*std::min_element(c.lengths.begin(), c.lengths.end()), 0) << name;
    EXPECT_EQ(c.num_q_heads % c.num_kv_heads, 0) << name;
    EXPECT_LE(c.head_dim_v, c.head_dim) << name;
    EXPECT_EQ(c.bytes() % 16, 0) << name;
    EXPECT_GE(c.pages() * c.page_tokens(), c.tokens()) << name;
  }
}

TEST(DecodeCases, CountTheQueryTokensOfEachSequence) {
  for (const Case& c : every_case()) {
    int begin = 0, num_long = 0;
    for (int b = 0; b < c.batch(); ++b) {
      EXPECT_EQ(c.query_begin(b), begin) << c.name("generic");
      begin += c.query_tokens(b);
      num_long += c.query_tokens(b) == c.num_q_tokens;
    }
    EXPECT_EQ(c.query_begin(c.batch()), begin) << c.name("generic");
    EXPECT_EQ(num_long, c.ragged() ? c.num_long : c.batch()) << c.name("generic");
  }
}

TEST(DecodeCases, HoldTheRowsOfTheSuites) {
  const auto cases = device_cases();
  for (const char* name : {"decode/generic/fp16/16x2x128/B256/S256/page16",
                           "decode/generic/fp16/16x2x128/B1/S131072/page16",
                           "decode/generic/fp16/64x8x128/B128/S2048/page16",
                           "decode/generic/bf16/32x32x128/B32/S8192/contiguous",
                           "decode/generic/fp16/32x8x128/B32/S8192/page1",
                           "decode/generic/fp16/32x8x128/B32/S8192/contiguous",
                           "decode/generic/fp16/16x2x128/B3/S512/page16",
                           "decode/generic/fp16/32x8x128/B64/one-long/page16",
                           "decode/generic/fp16/64x8x128/B256/mixed/page16",
                           "decode/generic/fp16/32x8x128/B256/conversation/page16",
                           "decode/generic/fp32/1x1x128/B1/S2097152/contiguous",
                           "decode/generic/bf16/16x1x576-512/B64/S4096/page64",
                           "decode/generic/fp8_ds_mla/16x1x576-512/B64/S4096/page64",
                           "decode/generic/fp8_e4m3/32x8x128/B32/S1024/page16",
                           "decode/generic/fp8_e4m3/64x8x128/B128/S2048/contiguous",
                           "decode/generic/int8/32x8x128/B1/S131072/page16",
                           "decode/generic/int4/32x8x128/B32/S8192/page16",
                           "decode/generic/fp16/64x4x128/B32/S8192/page16",
                           "decode/generic/fp16/32x8x128/B32q8/S1024/page16",
                           "decode/generic/int4/32x8x128/B32/S8192/page16-HND"})
    EXPECT_NO_THROW(find(cases, name));
}

TEST(DecodeCases, CountBytesAndProductsAsTheyAre) {
  const auto cases = device_cases();
  const auto row   = find(cases, "decode/generic/fp16/32x8x128/B32/S8192/page16");
  EXPECT_EQ(row.bytes(), 1073741824u);  // 32 x 8192 tokens x 8 heads x 128 dims x (key and value) x 2 bytes
  EXPECT_EQ(row.fmas(), 32.0 * 8192 * 32 * 128 * 2);
  EXPECT_EQ(row.pages(), 32 * 512);
  EXPECT_EQ(row.page_elements(), 16u * 8 * 128);
  const auto contiguous = find(cases, "decode/generic/fp16/32x8x128/B32/S8192/contiguous");
  EXPECT_EQ(contiguous.bytes(), row.bytes());
  EXPECT_EQ(contiguous.pages(), 32);
  EXPECT_EQ(contiguous.page_tokens(), 8192);
  const auto latent = find(cases, "decode/generic/bf16/32x1x576-512/B64/S4096/page64");
  EXPECT_EQ(latent.bytes(), 64u * 4096 * 576 * 2);  // values are read with the keys
  EXPECT_EQ(latent.fmas(), 64.0 * 4096 * 32 * (576 + 512));
  const auto packed_latent = find(cases, "decode/generic/fp8_ds_mla/32x1x576-512/B64/S4096/page64");
  EXPECT_EQ(packed_latent.bytes(), 64u * 4096 * 656);
  EXPECT_EQ(packed_latent.page_elements(), 64u * 656);
  EXPECT_EQ(packed_latent.fmas(), latent.fmas());
  const auto window = find(cases, "decode/generic/fp16/32x8x128/B32/S8192/page16-window4095+4");
  EXPECT_EQ(window.bytes(), row.bytes() / 8192 * 4100);
  const auto windows_of_several = find(cases, "decode/generic/fp16/32x8x128/B32q16/S8192/page16-window4095+4");
  EXPECT_EQ(windows_of_several.bytes(), row.bytes() / 8192 * 4115);
  EXPECT_NO_THROW(find(cases, "decode/generic/fp16/64x4x128/B64/S16384/page16-cap30"));
  const auto several = find(cases, "decode/generic/fp16/32x8x128/B32q8/S8192/page16");
  EXPECT_EQ(several.bytes(), row.bytes());
  EXPECT_EQ(several.fmas(), 8 * row.fmas());
  const auto long_one = find(cases, "decode/generic/fp32/1x1x128/B1/S2097152/contiguous");
  EXPECT_EQ(long_one.bytes(), std::size_t(1) << 31);
  // A byte or half a byte for each dim; four for the scale of a KV row if every token has one.
  EXPECT_EQ(find(cases, "decode/generic/fp8_e4m3/32x8x128/B32/S8192/page16").bytes(), 32u * 8192 * 8 * 2 * 128);
  EXPECT_EQ(find(cases, "decode/generic/int8/32x8x128/B32/S8192/page16").bytes(), 32u * 8192 * 8 * 2 * (128 + 4));
  const auto packed = find(cases, "decode/generic/int4/32x8x128/B32/S8192/page16");
  EXPECT_EQ(packed.bytes(), 32u * 8192 * 8 * 2 * (64 + 4));
  EXPECT_EQ(packed.page_elements(), 16u * 8 * 64);
  EXPECT_EQ(packed.fmas(), row.fmas());
  const auto skewed = find(cases, "decode/generic/fp16/32x8x128/B64/one-long/page16");
  EXPECT_EQ(skewed.tokens(), 131072 + 63 * 512);
  EXPECT_EQ(skewed.longest(), 131072);
  const auto mixed = find(cases, "decode/generic/fp16/32x8x128/B64/mixed/page16");
  EXPECT_EQ(*std::min_element(mixed.lengths.begin(), mixed.lengths.end()), 64);
  EXPECT_GT(mixed.longest(), 3500);
}

TEST(DecodeCases, EvenTwinsHoldTheSameTokens) {
  const auto cases = device_cases();
  int twins        = 0;
  for (const Case& c : cases) {
    if (!c.length_name.ends_with("-even")) continue;
    ++twins;
    std::string name = c.name("generic");
    name.erase(name.find("-even"), 5);
    const Case& skewed = find(cases, name);
    EXPECT_EQ(c.tokens(), skewed.tokens()) << name;
    EXPECT_EQ(c.batch(), skewed.batch()) << name;
    const auto [least, most] = std::minmax_element(c.lengths.begin(), c.lengths.end());
    EXPECT_LE(*most - *least, 1) << name;
  }
  EXPECT_EQ(twins, 9);
}

TEST(DecodeCases, OnlyTypesOfTheBuildAreLeft) {
#define PAGODA_TEST_CODE(name, ...) DType::name,
  const std::vector<DType> all{PAGODA_FOR_EACH_TYPE(PAGODA_TEST_CODE)};
#undef PAGODA_TEST_CODE
  for (const Case& c : of_types(device_cases(), {DType::fp16})) EXPECT_EQ(c.type, DType::fp16);
  EXPECT_TRUE(of_types(device_cases(), {}).empty());
  EXPECT_EQ(of_types(device_cases(), all).size(), device_cases().size());
}

TEST(DecodeCases, BarsAreThoseOfTheProject) {
  const auto bar = [](Bar which, std::string_view backend, double floor_us) {
    Case c;
    c.bar = which;
    return bar_us(c, backend, floor_us);
  };
  EXPECT_DOUBLE_EQ(bar(Bar::batch, "generic", 100).value(), 109);
  EXPECT_DOUBLE_EQ(bar(Bar::rows, "generic", 100).value(), 111);
  EXPECT_DOUBLE_EQ(bar(Bar::small, "generic", 2).value(), 6);
  EXPECT_DOUBLE_EQ(bar(Bar::quantized, "generic", 100).value(), 117);
  EXPECT_DOUBLE_EQ(bar(Bar::scattered, "generic", 100).value(), 110);
  EXPECT_DOUBLE_EQ(bar(Bar::latent16, "generic", 100).value(), 130);
  EXPECT_DOUBLE_EQ(bar(Bar::latent32, "generic", 100).value(), 160);
  EXPECT_DOUBLE_EQ(bar(Bar::streamed, "generic", 100).value(), 105);
  EXPECT_DOUBLE_EQ(bar(Bar::streamed, "tuned", 100).value(), 104);
  EXPECT_DOUBLE_EQ(bar(Bar::batch, "tuned", 100).value(), 104);
  EXPECT_DOUBLE_EQ(bar(Bar::rows, "tuned", 100).value(), 105.5);
  EXPECT_DOUBLE_EQ(bar(Bar::small, "tuned", 2).value(), 5);
  EXPECT_DOUBLE_EQ(bar(Bar::quantized, "tuned", 100).value(), 109);
  EXPECT_FALSE(bar(Bar::none, "generic", 2));
  EXPECT_DOUBLE_EQ(bar(Bar::latent16, "tuned", 100).value(), 110);
  EXPECT_FALSE(bar(Bar::latent32, "tuned", 100));
  const auto cases      = device_cases();
  const auto many_heads = find(cases, "decode/generic/bf16/128x1x576-512/B64/S4096/page64");
  EXPECT_NEAR(bar_us(many_heads, "tuned", 66).value(), 125.9, 0.1);  // 580 TFLOP/s
  EXPECT_FALSE(bar_us(many_heads, "generic", 66));
  EXPECT_EQ(find(cases, "decode/generic/fp16/16x2x128/B16/S4096/page16").bar, Bar::batch);
  EXPECT_EQ(find(cases, "decode/generic/fp16/16x2x128/B8/S8192/page16").bar, Bar::rows);
  EXPECT_EQ(find(cases, "decode/generic/fp16/32x8x128/B1/S512/page16").bar, Bar::small);
  EXPECT_EQ(find(cases, "decode/generic/fp16/32x8x128/B64/conversation/page16").bar, Bar::none);
  EXPECT_EQ(find(cases, "decode/generic/fp8_e4m3/32x8x128/B8/S4096/page16").bar, Bar::quantized);
  EXPECT_EQ(find(cases, "decode/generic/fp16/32x8x128/B32/S8192/page1").bar, Bar::scattered);
  EXPECT_EQ(find(cases, "decode/generic/bf16/16x1x576-512/B64/S4096/page64").bar, Bar::latent16);
  EXPECT_EQ(find(cases, "decode/generic/bf16/32x1x576-512/B64/S4096/page64").bar, Bar::latent32);
  EXPECT_EQ(find(cases, "decode/generic/bf16/16x1x576-512/B1/S65536/page64").bar, Bar::none);
  EXPECT_EQ(find(cases, "decode/generic/fp32/1x1x128/B1/S2097152/contiguous").bar, Bar::streamed);
}

constexpr std::size_t MB = 1'000'000, GB = 1000 * MB;

TEST(DecodeRotation, KeepsEveryCallCold) {
  for (const std::size_t last_level : {32 * MB, 60 * MB, 512 * MB}) {
    for (std::size_t bytes = 2 * MB + MB / 2; bytes < 8 * GB; bytes *= 2) {
      const Rotation r = rotation(bytes, last_level, 100 * GB);
      EXPECT_GE(r.caches, 2);
      if (r.caches < 512) {
        EXPECT_GT(r.caches * bytes, 4 * last_level);
        EXPECT_GE(r.caches * bytes, 1200 * MB);
      }
      EXPECT_GE(r.calls, 8);
      EXPECT_EQ(r.calls % r.caches, 0);
    }
  }
}

TEST(DecodeRotation, StaysWithinItsRoom) {
  EXPECT_EQ(rotation(500 * MB, 60 * MB, 100 * GB).caches, 3);
  EXPECT_EQ(rotation(500 * MB, 60 * MB, GB).caches, 2);
  EXPECT_EQ(rotation(500 * MB, 60 * MB, 500 * MB).caches, 1);
  EXPECT_EQ(rotation(500 * MB, 60 * MB, 499 * MB).caches, 0);
  EXPECT_LE(rotation(1, 60 * MB, 100 * GB).caches, 512);
}

}  // namespace
}  // namespace pagoda::bench
