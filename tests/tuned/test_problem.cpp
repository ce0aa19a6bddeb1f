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

}  // namespace
}  // namespace pagoda::detail
