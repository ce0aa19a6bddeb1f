// SPDX-License-Identifier: Apache-2.0
// How problems reach the hand-tuned kernels' interface. Needs no CUDA.
#include "backends/cuda/tuned_problem.hpp"

#include <gtest/gtest.h>

#include <string>

namespace pagoda::detail {
namespace {

alignas(256) char memory[256];  // an address; it is never read

/// A batch of 3 with 7 query tokens in all, whose rows are not adjacent.
struct Planned {
  Schedule schedule;
  Problem problem;
  Planned() {
    schedule.shape = {.kv_type = DType::fp16, .num_q_heads = 16, .num_kv_heads = 2, .head_dim = 64, .head_dim_v = 64};
    schedule.bounds.max_query_len = 4, schedule.bounds.max_seq_len = 512;
    CacheRef& kv = problem.kv;
    kv.k = kv.v = {memory, DType::fp16, 4, {3, 512, 2, 64}, {512 * 128, 128, 64, 1}};
    kv.batch = kv.num_sequences = 3, kv.max_seq_len = 512;
    kv.seq_lens = reinterpret_cast<const int*>(memory);
    problem.q   = {memory, DType::fp16, 3, {7, 16, 64, 0}, {2048, 64, 1, 0}};
    problem.out = {memory, DType::fp32, 3, {7, 16, 64, 0}, {4096, 128, 1, 0}};
    problem.lse = {memory, DType::fp32, 2, {7, 16, 0, 0}, {32, 2, 0, 0}};
  }
  tuned::Problem passed() const {
    tuned::Problem t{};
    const char* const reason = tuned_problem(schedule, problem, t);
    EXPECT_EQ(std::string(reason ? reason : ""), "");
    return t;
  }
};

TEST(TunedProblem, RaggedQueryTokens) {
  Planned planned;
  planned.schedule.options.cu_seqlens_q = reinterpret_cast<const int*>(memory + 64);
  const tuned::Problem t                = planned.passed();
  EXPECT_EQ(t.cu_seqlens_q, planned.schedule.options.cu_seqlens_q);
  // What the plan loads depends on it.
  EXPECT_EQ(tuned_shape(planned.schedule).cu_seqlens_q, planned.schedule.options.cu_seqlens_q);
  EXPECT_EQ(t.total_q_tokens, 7);
  EXPECT_EQ(t.max_q_tokens, 4);
  EXPECT_TRUE(t.causal);
}

// Strides are those of one query token, whatever the number of an entry.
TEST(TunedProblem, StridesOfQueryTokens) {
  Planned planned;
  for (const int each : {1, 2, 4}) {
    for (TensorRef* rows : {&planned.problem.q, &planned.problem.out, &planned.problem.lse}) rows->extent[0] = 3 * each;
    const tuned::Problem t = planned.passed();
    EXPECT_EQ(t.cu_seqlens_q, nullptr);
    EXPECT_EQ(t.num_q_tokens, each);
    EXPECT_EQ(t.q.token, 2048);
    EXPECT_EQ(t.q.head, 64);
    EXPECT_EQ(t.out.token, 4096);
    EXPECT_EQ(t.out.head, 128);
    EXPECT_EQ(t.lse_token, 32);
    EXPECT_EQ(t.lse_head, 2);
  }
}

// Scales of single tokens, and rows of half a byte for each dim.
TEST(TunedProblem, IntegerCaches) {
  Planned planned;
  planned.schedule.shape.kv_type  = DType::int4;
  planned.schedule.shape.head_dim = planned.schedule.shape.head_dim_v = 128;
  CacheRef& kv                                                        = planned.problem.kv;
  kv.k = kv.v            = {memory, DType::int4, 4, {3, 512, 2, 64}, {512 * 128, 128, 64, 1}};
  kv.k_scale             = {reinterpret_cast<const float*>(memory), {1024, 2, 1}};
  kv.v_scale             = {reinterpret_cast<const float*>(memory), {0, 0, 1}};
  const tuned::Problem t = planned.passed();
  EXPECT_EQ(t.type, tuned::Type::int4);
  EXPECT_EQ(t.k.page, 512 * 128);
  EXPECT_EQ(t.k.token, 128);
  EXPECT_EQ(t.k.head, 64);
  EXPECT_EQ(t.k.scale_page, 1024);
  EXPECT_EQ(t.k.scale_token, 2);
  EXPECT_EQ(t.k.scale_head, 1);
  EXPECT_TRUE(has_token_scales(t.k));
  EXPECT_FALSE(has_token_scales(t.v));
  EXPECT_EQ(tuned::row_bytes(t.type, t.head_dim), 64);
}

// Bytes of rows that hold their scales. Keys and values are the same rows.
TEST(TunedProblem, RowsWithTheirScales) {
  Planned planned;
  ProblemShape& shape = planned.schedule.shape;
  shape.kv_type = DType::fp8_ds_mla, shape.num_kv_heads = 1, shape.head_dim = 576, shape.head_dim_v = 512;
  CacheRef& kv = planned.problem.kv;
  kv.k = kv.v            = {memory, DType::fp8_ds_mla, 4, {3, 512, 1, 656}, {512 * 672, 672, 656, 1}};
  planned.problem.q.type = DType::bf16;
  const tuned::Problem t = planned.passed();
  EXPECT_EQ(t.type, tuned::Type::fp8_ds_mla);
  EXPECT_EQ(t.k.page, 512 * 672);
  EXPECT_EQ(t.k.token, 672);
  EXPECT_EQ(t.v.token, 672);
  EXPECT_EQ(t.v.data, t.k.data);
  EXPECT_EQ(tuned::row_bytes(t.type, t.head_dim), 656);
  EXPECT_EQ(tuned::query_type(t.type), tuned::Type::bf16);
  EXPECT_TRUE(tuned::is_quantized(t.type));
}

// What the plan allocates and loads depends on whether there are options.
TEST(TunedProblem, ScoreOptions) {
  Planned planned;
  EXPECT_FALSE(planned.passed().options.any());
  AttentionOptions& o  = planned.schedule.options;
  o.num_initial_tokens = 7;
  EXPECT_FALSE(planned.passed().options.any()) << "without a window all tokens are visible";
  const float per_head[16] = {};
  o.window_left = 0, o.logit_soft_cap = 30, o.alibi_slopes = per_head, o.sinks = per_head + 1;
  for (const tuned::Problem& t : {planned.passed(), tuned_shape(planned.schedule)}) {
    EXPECT_TRUE(t.options.any());
    EXPECT_EQ(t.options.window_left, 0);
    EXPECT_EQ(t.options.num_initial_tokens, 7);
    EXPECT_EQ(t.options.logit_soft_cap, 30);
    EXPECT_EQ(t.options.alibi_slopes, per_head);
    EXPECT_EQ(t.options.sinks, per_head + 1);
    EXPECT_EQ(t.list.sinks, nullptr);
  }
  o       = {};
  o.sinks = per_head;
  EXPECT_TRUE(planned.passed().options.any());
}

TEST(TunedProblem, Lists) {
  Planned planned;
  planned.schedule.bounds.max_entries       = 10;
  planned.schedule.bounds.max_entry_queries = 8;
  Problem& p                                = planned.problem;
  tuned::Problem refused{};
  EXPECT_STREQ(tuned_problem(planned.schedule, p, refused), "a list of entries, with a contiguous cache");
  p.kv.paged = true, p.kv.block_table = reinterpret_cast<const int*>(memory);
  p.entries   = {reinterpret_cast<const Entry*>(memory + 32),
                 reinterpret_cast<const EntryQuery*>(memory + 64),
                 reinterpret_cast<const int*>(memory + 96),
                 nullptr,
                 5,
                 9,
                 8,
                 0};
  p.state_out = {memory, DType::bf16, 3, {20, 16, 64, 0}, {1024, 64, 1, 0}};
  p.state_lse = {memory + 16, DType::fp64, 2, {20, 16, 0, 0}, {16, 1, 0, 0}};

  const tuned::Problem t = planned.passed();
  EXPECT_TRUE(is_list(t));
  EXPECT_EQ(t.list.num_entries, 5);
  EXPECT_EQ(t.list.entries, p.entries.entries);
  EXPECT_EQ(t.list.queries, p.entries.queries);
  EXPECT_EQ(t.list.state_begin, p.entries.state_begin);
  EXPECT_EQ(t.list.masks, nullptr);
  EXPECT_EQ(t.max_q_tokens, 8);
  EXPECT_EQ(t.total_q_tokens, 7);
  EXPECT_EQ(t.list.state_out.type, tuned::Type::bf16);
  EXPECT_EQ(t.list.state_out.token, 1024);
  EXPECT_EQ(t.list.state_out.head, 64);
  EXPECT_EQ(t.list.state_lse.data, p.state_lse.data);
  EXPECT_TRUE(t.list.state_lse.is_double);
  EXPECT_EQ(t.list.state_lse.token, 16);

  const std::uint64_t masks[2] = {};
  p.entries.masks = masks, p.entries.num_mask_words = 2;
  EXPECT_EQ(planned.passed().list.masks, masks);
  const float per_head[16] = {};
  EXPECT_EQ(t.list.sinks, nullptr);
  planned.schedule.options.sinks = per_head;
  EXPECT_EQ(planned.passed().list.sinks, per_head);
  planned.schedule.options.alibi_slopes = per_head;
  EXPECT_EQ(planned.passed().options.alibi_slopes, per_head);
  EXPECT_EQ(planned.passed().options.sinks, nullptr);
  planned.schedule.options.alibi_slopes = nullptr;
  EXPECT_FALSE(planned.passed().options.any());
  p.state_out.stride[2] = 2;
  EXPECT_STREQ(tuned_problem(planned.schedule, p, refused), "dims of partial states do not lie side by side");
}

}  // namespace
}  // namespace pagoda::detail
