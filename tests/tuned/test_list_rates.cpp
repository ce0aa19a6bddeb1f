// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/rates.hpp"
#include "src/plan/prefix/cost.hpp"

#include <gtest/gtest.h>

#include <vector>

/// The rates of an H200 follow the kernels that decode, and the cost model prices their passes.
namespace pagoda::detail {
namespace {

/// rows: most query rows of an entry that share a KV head.
Schedule tuned_schedule(int rows = 128, int num_kv_heads = 8) {
  Schedule s;
  s.shape                    = {DType::fp16, 32, num_kv_heads, 128, 128};
  s.bounds.max_entries       = 100;
  s.bounds.max_entry_queries = rows / s.shape.group();
  s.backend.name             = "tuned";
  s.kernel.row_tile          = 8;  // of the generic kernel, which is not the one that decodes
  s.kernel.probability_type  = DType::fp16;
  return s;
}

Schedule generic_schedule(int row_tile, DType probability_type) {
  Schedule s;
  s.backend.name            = "generic";
  s.kernel.row_tile         = row_tile;
  s.kernel.probability_type = probability_type;
  return s;
}

/// Rates where all entries have one plan, with pages of 16 tokens.
DeviceRates rates_of(const Schedule& plain, const Schedule& lists) {
  const Schedule* const parts[] = {&lists};
  return h200_rates(plain, parts, 16, 2);
}

std::vector<int> rows_of(const std::vector<RowTile>& tiles) {
  std::vector<int> rows;
  for (const RowTile& tile : tiles) rows.push_back(tile.rows);
  return rows;
}

const DecodeHeads fp8_heads{32, 8, 128, 128, 256};  // 4 query heads to a KV head

// In caches of 16 bits longer sequences are in chains, too, where a batch has full chains for 9/10 of 264 teams: with
// eight KV heads 30.
TEST(ListRates, LongChainsAreThoseOfLargeBatches) {
  const auto tuned    = tuned_schedule(64);
  Schedule bytes      = tuned;
  bytes.shape.kv_type = DType::fp8_e4m3;
  const DecodeHeads heads{32, 8, 128, 128, 512};  // a chain has 16 query tokens
  for (const int batch : {16 * 29, 16 * 30}) {
    EXPECT_EQ(CostModel(heads, rates_of(tuned, tuned)).chain_tokens(batch), 256);
    EXPECT_EQ(CostModel(fp8_heads, rates_of(bytes, bytes)).chain_tokens(batch), 128);
    const DecodeHeads group_of_two{16, 8, 128, 128, 512};  // a chain has 32 query tokens
    EXPECT_EQ(CostModel(group_of_two, rates_of(tuned, tuned)).chain_tokens(2 * batch), batch == 16 * 30 ? 256 : 128);
  }
}

TEST(ListRates, TilesAreThoseOfTheKernels) {
  const auto tuned = tuned_schedule();
  EXPECT_EQ(rows_of(rates_of(tuned, tuned).tiles), std::vector{64});
  EXPECT_EQ(rows_of(rates_of(tuned, tuned).plain_tiles), (std::vector{8, 64, 128}));
  for (const DType type : {DType::fp16, DType::fp32})
    for (const int row_tile : {1, 4, 8, 16, 32}) {
      const auto generic = generic_schedule(row_tile, type);
      EXPECT_EQ(rows_of(rates_of(tuned, generic).tiles), std::vector{row_tile});
      EXPECT_EQ(rows_of(rates_of(tuned, generic).plain_tiles), (std::vector{8, 64, 128}));
      EXPECT_EQ(rows_of(rates_of(generic, tuned).tiles), std::vector{64});
      EXPECT_EQ(rows_of(rates_of(generic, tuned).plain_tiles), std::vector{row_tile});
      EXPECT_NO_THROW(CostModel(fp8_heads, rates_of(generic, generic)));
    }
}

// With one query head to a KV head, entries of up to 8 rows have a kernel of their own if they have one query token, or
// hide nothing.
TEST(ListRates, FewRowsHaveACheaperTile) {
  const auto plain = tuned_schedule(8, 32), wide = tuned_schedule(128, 32), narrow = tuned_schedule(64, 32);
  auto few            = tuned_schedule(8, 32);
  few.options.causal  = false;
  const auto tiles_of = [&](const Schedule& last, int page_size) {
    const Schedule* const parts[] = {&wide, &narrow, &last};
    return rows_of(h200_rates(plain, parts, page_size, 2).tiles);
  };
  EXPECT_EQ(tiles_of(few, 16), (std::vector{8, 64}));
  EXPECT_EQ(tiles_of(few, 8), std::vector{64});
  EXPECT_EQ(tiles_of(tuned_schedule(1, 32), 32), (std::vector{8, 64}));
  EXPECT_EQ(tiles_of(tuned_schedule(8, 32), 32), std::vector{64});  // causal
  EXPECT_EQ(tiles_of(tuned_schedule(4), 32), std::vector{64});      // four query heads to a KV head
  const Schedule* const parts[] = {&wide, &narrow, &few};
  const CostModel cost({32, 32, 128, 128, 512}, h200_rates(plain, parts, 16, 2));
  EXPECT_LT(cost.item(8), cost.item(9));
  EXPECT_LT(cost.pass(8), cost.pass(9));
  EXPECT_EQ(cost.steps(), (std::vector{8, 64}));
}
TEST(ListRates, PartsHaveFasterKernels) {
  const auto generic = generic_schedule(8, DType::fp16);
  auto few           = tuned_schedule(8, 32);
  few.options.causal = false;
  EXPECT_TRUE(is_faster_part(tuned_schedule(64), tuned_schedule(), 16));
  EXPECT_FALSE(is_faster_part(tuned_schedule(8, 32), tuned_schedule(64, 32), 16));  // causal
  EXPECT_FALSE(is_faster_part(tuned_schedule(4), tuned_schedule(64), 16));
  EXPECT_TRUE(is_faster_part(few, tuned_schedule(64, 32), 16));
  EXPECT_FALSE(is_faster_part(few, tuned_schedule(64, 32), 8));
  EXPECT_TRUE(is_faster_part(tuned_schedule(4), generic, 16));
  EXPECT_FALSE(is_faster_part(generic, generic, 16));
  EXPECT_TRUE(is_faster_part(generic, generic_schedule(16, DType::fp16), 16));
}

// Beside a kernel that carries out entries of few rows and of many at the same time, those of few rows have no launch
// of their own.
TEST(ListRates, FewRowsMayHaveALaunchOfTheirOwn) {
  EXPECT_TRUE(are_worth_a_launch(64, 32, false));
  EXPECT_FALSE(are_worth_a_launch(63, 32, false));
  EXPECT_FALSE(are_worth_a_launch(1 << 20, 32, true));
  Schedule mixed       = tuned_schedule(64, 8);
  mixed.options.causal = false;
  EXPECT_EQ(mixed_few_queries(mixed, 16), 2);  // of four query heads each
  mixed.options.causal = true;
  EXPECT_EQ(mixed_few_queries(mixed, 16), 1);
  EXPECT_EQ(mixed_few_queries(mixed, 8), 0);
  EXPECT_EQ(mixed_few_queries(tuned_schedule(128, 8), 16), 0);
  EXPECT_TRUE(has_mixed_kernel(tuned_schedule(64, 32), 32));
  EXPECT_TRUE(has_mixed_kernel(tuned_schedule(64, 8), 16));
  EXPECT_FALSE(has_mixed_kernel(tuned_schedule(64, 8), 8));
  EXPECT_FALSE(has_mixed_kernel(tuned_schedule(8, 8), 16));    // no entries of many rows
  EXPECT_FALSE(has_mixed_kernel(tuned_schedule(128, 8), 16));  // blocks of two warpgroups
  EXPECT_FALSE(has_mixed_kernel(tuned_schedule(64, 2), 16));   // no entries of few rows
  auto bytes          = tuned_schedule(64);
  bytes.shape.kv_type = DType::fp8_e4m3;
  EXPECT_FALSE(has_mixed_kernel(bytes, 16));
}

// Caches of 8 bits: a plain decode has up to 8 query rows to a kv head, and a list has the kernels of 16 bits.
TEST(ListRates, BytesHaveTheirOwn) {
  auto plain = tuned_schedule(4), wide = tuned_schedule(), narrow = tuned_schedule(64), few = tuned_schedule(4);
  for (Schedule* const s : {&plain, &wide, &narrow, &few}) s->shape.kv_type = DType::fp8_e4m3;
  const Schedule* const parts[] = {&wide, &narrow, &few};
  const DeviceRates rates       = h200_rates(plain, parts, 32, 2);
  EXPECT_EQ(rows_of(rates.tiles), (std::vector{8, 64}));
  EXPECT_EQ(rows_of(rates.plain_tiles), std::vector{8});
  const CostModel bytes(fp8_heads, rates), halves({32, 8, 128, 128, 512}, rates_of(tuned_schedule(), tuned_schedule()));
  EXPECT_GT(bytes.plain_pass(1), halves.plain_pass(1) / 2);  // not twice as fast for half of the bytes
  plain.shape.kv_type = DType::int8;
  EXPECT_LT(CostModel(fp8_heads, h200_rates(plain, parts, 32, 2)).plain_pass(1), bytes.plain_pass(1));
  for (Schedule* const s : {&wide, &narrow, &few}) s->shape.kv_type = DType::int8;
  EXPECT_EQ(rows_of(h200_rates(plain, parts, 32, 2).tiles), (std::vector{8, 64}));
  // With eight query heads to a KV head the kernel for few rows is slower than the one for 64.
  wide = tuned_schedule(128, 4), narrow = tuned_schedule(64, 4), few = tuned_schedule(8, 4);
  for (const DType type : {DType::fp8_e4m3, DType::int8}) {
    for (Schedule* const s : {&wide, &narrow, &few}) s->shape.kv_type = type;
    EXPECT_EQ(rows_of(h200_rates(plain, parts, 32, 2).tiles), std::vector{64});
  }
}

// The generic kernel converts bytes, which takes longer than to read them.
TEST(ListRates, GenericPassesOverBytesAreLimitedByConversion) {
  auto lists = generic_schedule(8, DType::fp16), bytes = lists;
  bytes.shape.kv_type = DType::int8;
  const CostModel halves(fp8_heads, rates_of(lists, lists)), converted(fp8_heads, rates_of(bytes, bytes));
  EXPECT_GT(converted.pass(1), halves.pass(1));
  EXPECT_EQ(converted.plain_pass(1), converted.pass(1));
}

// In the generic kernel 16 query rows take two passes of its 8 rows, and two items.
TEST(ListRates, RowsBeyondATileTakeMorePasses) {
  const CostModel cost(fp8_heads, rates_of(tuned_schedule(), generic_schedule(8, DType::fp16)));
  EXPECT_EQ(cost.queries_per_entry(), 2);
  EXPECT_EQ(cost.pass(1), cost.pass(2));
  EXPECT_DOUBLE_EQ(cost.pass(4), 2 * cost.pass(2));
  EXPECT_DOUBLE_EQ(cost.item(4), 2 * cost.item(2));
  EXPECT_EQ(CostModel(fp8_heads, rates_of(tuned_schedule(), tuned_schedule())).queries_per_entry(), 16);
  // A latent cache: 16 query heads to its KV head, in tiles of 32 rows.
  const CostModel latent({16, 1, 576, 512, 1152}, rates_of(tuned_schedule(), generic_schedule(32, DType::fp16)));
  EXPECT_EQ(latent.pass(1), latent.pass(2));
  EXPECT_DOUBLE_EQ(latent.pass(4), 2 * latent.pass(2));
}

// A plain decode in the generic kernel passes over a sequence again for every 8 rows of its query tokens.
TEST(ListRates, PlainPassesFollowThePlainKernel) {
  const auto lists = generic_schedule(8, DType::fp16);
  const CostModel generic(fp8_heads, rates_of(lists, lists)), tuned(fp8_heads, rates_of(tuned_schedule(), lists));
  for (const int queries : {1, 2, 4, 16}) EXPECT_EQ(generic.plain_pass(queries), generic.pass(queries)) << queries;
  EXPECT_DOUBLE_EQ(generic.plain_pass(4), 2 * generic.plain_pass(2));
  EXPECT_LT(tuned.plain_pass(16), generic.plain_pass(16));
}

// Without matrix instructions a pass takes longer.
TEST(ListRates, VectorKernelsAreSlower) {
  const auto pass = [](DType type) {
    const auto generic = generic_schedule(8, type);
    return CostModel(fp8_heads, rates_of(generic, generic)).pass(2);
  };
  EXPECT_GT(pass(DType::fp32), 2 * pass(DType::fp16));
}

}  // namespace
}  // namespace pagoda::detail
