// SPDX-License-Identifier: Apache-2.0
#include "bench/serve/server.hpp"

#include "tests/support/spaces.hpp"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace pagoda::serve {
namespace {

Trace small_trace() {
  Trace t;
  t.block_tokens = 32;
  t.requests = {{0, 60, 4, {1, 2}}, {0, 33, 2, {1, 3}}, {0, 100, 9, {1, 2, 4, 5}}, {0, 5, 1, {6}}, {0, 64, 3, {1, 7}}};
  return t;
}

constexpr int max_len = 109;

template <class On>
class ServerTest : public testing::Test {
 public:
  using Space      = typename On::space;
  using T          = typename On::type;
  using Contiguous = Server<ContiguousPool<T, Space>>;
  using Paged      = Server<PagedPool<T, Space>>;

  Space exec;
  Workload<typename Space::memory_space> workload{small_trace(), find_model("SmolLM2-135M"), 1};
  Capacity contiguous{3, 3, max_len}, paged{8, 40, 8};

  template <class AnyServer>
  Check serve(AnyServer& server, int steps) {
    Check check;
    for (int i = 0; i < steps; ++i) {
      server.admit();
      server.append();
      server.make_queries();
      EXPECT_GT(server.decode(2), 0);
      EXPECT_EQ(server.pool().tokens_held(), server.scheduler().tokens_held());
      server.check(20, static_cast<std::uint64_t>(i), check);
      server.retire();
    }
    EXPECT_EQ(check.rows, 20 * steps);
    EXPECT_GT(server.scheduler().finished(), 5);
    return check;
  }
};
TYPED_TEST_SUITE(ServerTest, test::SpacesAndTypes, test::Names);

TYPED_TEST(ServerTest, ContiguousIsRight) {
  typename TestFixture::Contiguous server(this->exec, this->workload, this->contiguous, max_len);
  EXPECT_LE(this->serve(server, 20).worst, 1);
}

TYPED_TEST(ServerTest, PagedIsRight) {
  typename TestFixture::Paged server(this->exec, this->workload, this->paged, max_len);
  scatter_pages(this->exec, server.pool(), 1);
  EXPECT_LE(this->serve(server, 20).worst, 1);
}

/// The check recomputes rows instead of reading them, so it finds a token at a wrong position.
TYPED_TEST(ServerTest, AMisplacedTokenShows) {
  typename TestFixture::Paged server(this->exec, this->workload, this->paged, max_len);
  server.admit();
  server.append();
  server.make_queries();
  server.decode(1);
  Check right;
  server.check(200, 1, right);
  EXPECT_LE(right.worst, 1);

  // Token 7 of the first sequence is at the position of token 8.
  using Rows = typename TestFixture::Paged::Rows;
  const Rows k("k", 1, 3, 64), v("v", 1, 3, 64);
  fill_rows(this->exec, Part::key, PromptTokens{this->workload.on_device(0), 7}, k);
  fill_rows(this->exec, Part::value, PromptTokens{this->workload.on_device(0), 7}, v);
  const Kokkos::View<std::int64_t*, typename TypeParam::space::memory_space> where("where", 1);
  Kokkos::deep_copy(where, server.pool().slot_mapping(0, 8, 1)[0]);
  server.pool().write(this->exec, where, k, v);
  server.decode(1);
  Check wrong;
  server.check(200, 1, wrong);
  EXPECT_GT(wrong.worst, 1);
}

TYPED_TEST(ServerTest, ScatteredPagesAreAllFreeAndFarApart) {
  typename TestFixture::Paged server(this->exec, this->workload, {8, 400, 4}, max_len);
  auto& pool = server.pool();
  scatter_pages(this->exec, pool, 1);
  EXPECT_EQ(pool.free_pages(), 400);
  EXPECT_EQ(pool.free_slots(), 8);
  std::set<int> seen;
  int neighbours = 0, pages = 0;
  while (pool.can_admit(100)) {
    const auto table = pool.block_table(pool.admit(this->exec, 100));
    for (std::size_t i = 0; i < table.size(); ++i, ++pages) {
      seen.insert(table[i]);
      if (i > 0 && std::abs(table[i] - table[i - 1]) == 1) ++neighbours;
    }
  }
  EXPECT_EQ(static_cast<int>(seen.size()), pages);
  EXPECT_LT(neighbours, pages / 10);
}

TEST(CheckResult, KeepsTheWorstAndNaN) {
  Check check;
  for (const double error : {0.1, 0.7, 0.3}) check.add(error);
  EXPECT_EQ(check.worst, 0.7);
  EXPECT_TRUE(check.passed());
  check.add(std::nan(""));
  check.add(0.2);
  EXPECT_FALSE(check.passed());
  EXPECT_EQ(check.rows, 5);
}

}  // namespace
}  // namespace pagoda::serve
