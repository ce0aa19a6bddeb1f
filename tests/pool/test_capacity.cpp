// SPDX-License-Identifier: Apache-2.0
#include <pagoda/kv_capacity.hpp>

#include "tests/support/refusal.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace pagoda::test {
namespace {

constexpr std::int64_t gib = std::int64_t(1) << 30;

TEST(Capacity, BytesPerToken) {
  EXPECT_EQ(bytes_per_token(1, 128, DType::fp32), 1024);
  EXPECT_EQ(bytes_per_token(8, 128, DType::fp16), 4096);       // 8 kv heads of 128
  EXPECT_EQ(bytes_per_token(8, 192, DType::bf16, 128), 5120);  // values narrower than keys
  EXPECT_EQ(latent_bytes_per_token(512, 64, DType::bf16), 1152);
}

TEST(Capacity, ReservedTokensAndWaste) {
  EXPECT_EQ(reserved_tokens(0, 16), 0);
  EXPECT_EQ(reserved_tokens(1, 16), 16);
  EXPECT_EQ(reserved_tokens(16, 16), 16);
  EXPECT_EQ(reserved_tokens(17, 16), 32);
  EXPECT_DOUBLE_EQ(waste_fraction(512, 2048), 0.75);
  EXPECT_DOUBLE_EQ(waste_fraction(512, 4096), 0.875);
  EXPECT_DOUBLE_EQ(waste_fraction(512, 16), 0.0);
  EXPECT_DOUBLE_EQ(waste_fraction(0, 16), 0.0);
}

// Case K3: 4 GB, one head of 128 in fp32, sequences of 512 tokens. Figure 5 of the study.
TEST(Capacity, SequencesInTheStudysBudget) {
  const auto token = bytes_per_token(1, 128, DType::fp32);
  const auto paged = sequences_that_fit(4 * gib, token, 512, 16);
  EXPECT_EQ(paged, 8192);
  for (const int max_seq_len : {512, 1024, 2048, 4096, 8192}) {
    const auto contiguous = sequences_that_fit(4 * gib, token, 512, max_seq_len);
    EXPECT_EQ(paged / contiguous, max_seq_len / 512);
    EXPECT_DOUBLE_EQ(waste_fraction(512, max_seq_len), 1.0 - 512.0 / max_seq_len);
  }
  EXPECT_EQ(paged, 4 * sequences_that_fit(4 * gib, token, 512, 2048));  // 75% fragmentation
  EXPECT_EQ(paged, 8 * sequences_that_fit(4 * gib, token, 512, 4096));  // 87%
}

TEST(Capacity, RoundsDownToWholePagesAndSequences) {
  EXPECT_EQ(sequences_that_fit(1000, 1, 17, 16), 31);  // 62 pages, two each
  EXPECT_EQ(sequences_that_fit(31, 1, 17, 16), 0);
  EXPECT_EQ(sequences_that_fit(0, 1, 1, 1), 0);
}

TEST(Capacity, Errors) {
  expect_refusal([] { static_cast<void>(sequences_that_fit(-1, 1, 1, 1)); },
                 {"pagoda::sequences_that_fit: budget_bytes is -1", "a budget of 0 or more, the others 1 or more"});
  expect_refusal([] { static_cast<void>(sequences_that_fit(1, 0, 1, 1)); }, {"token_bytes 0"});
  expect_refusal([] { static_cast<void>(sequences_that_fit(1, 1, 0, 1)); }, {"seq_len 0"});
  expect_refusal([] { static_cast<void>(sequences_that_fit(1, 1, 1, 0)); }, {"page_size 0"});
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  expect_refusal([] { static_cast<void>(reserved_tokens(5, 0)); },
                 {"pagoda::reserved_tokens: seq_len is 5, page_size 0", "a page_size of 1 or more"});
  expect_refusal([] { static_cast<void>(waste_fraction(-1, 16)); }, {"seq_len is -1", "a seq_len of 0 or more"});
  expect_refusal([] { static_cast<void>(reserved_tokens(most, 16)); }, {"fewer than 2^63 tokens"});
  expect_refusal([] { static_cast<void>(bytes_per_token(-3, 128, DType::fp16)); },
                 {"pagoda::bytes_per_token: num_kv_heads is -3, head_dim 128", "0 or more each"});
  expect_refusal([] { static_cast<void>(bytes_per_token(1 << 30, 1 << 30, DType::fp64)); }, {"fewer than 2^60 dims"});
  expect_refusal([] { static_cast<void>(latent_bytes_per_token(512, -64, DType::bf16)); },
                 {"pagoda::latent_bytes_per_token: kv_lora_rank is 512, rope_dim -64", "0 or more each"});
}

// Sizes whose products exceed an int, or 64 bits, before the division.
TEST(Capacity, LargeSizes) {
  EXPECT_EQ(bytes_per_token(1, 2147483647, DType::fp16), 4 * std::int64_t(2147483647));
  EXPECT_EQ(latent_bytes_per_token(2147483647, 1, DType::fp16), std::int64_t(1) << 32);
  EXPECT_EQ(reserved_tokens(std::numeric_limits<std::int64_t>::max(), 1), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(sequences_that_fit(std::int64_t(1) << 40, std::int64_t(1) << 32, 5, std::int64_t(1) << 32), 0);
  EXPECT_EQ(sequences_that_fit(std::int64_t(1) << 62, 1 << 20, 5, std::int64_t(1) << 40), 4);
}

static_assert(sequences_that_fit(4 * gib, bytes_per_token(1, 128, DType::fp32), 512, 16) == 8192);

}  // namespace
}  // namespace pagoda::test
