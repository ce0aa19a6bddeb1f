// SPDX-License-Identifier: Apache-2.0
// What the planner refuses, and in which words.
#include "src/plan/prefix/planner.hpp"
#include "tests/prefix/prefix_batch.hpp"

#include <pagoda/error.hpp>

#include <gmock/gmock.h>

#include <functional>
#include <string>
#include <utility>

namespace pagoda::test {
namespace {

using namespace detail;
using testing::HasSubstr;

constexpr DecodeHeads heads{32, 8, 128, 128, 512};

template <class Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing was refused";
}

PrefixBatch batch_of(PrefixBatch::Table table) {
  PrefixBatch batch;
  batch.rows     = {{1, 2, 3}, {1, 2, 4}};
  batch.seq_lens = {48, 40};
  batch.table    = table;
  return batch;
}

std::string refusal_of(const BatchPages& p) {
  PrefixPlanner planner(heads, {});
  const std::string text = refusal([&] { planner.plan(p); });
  EXPECT_FALSE(planner.holds(BatchPages{})) << "a refused batch left a plan";
  return text;
}

TEST(PrefixErrors, Tables) {
  const auto dense = PrefixBatch::Table::dense, csr = PrefixBatch::Table::csr;
  const std::vector<std::tuple<PrefixBatch::Table, std::function<void(BatchPages&, PrefixBatch&)>, const char*>> cases =
      {
          {dense, [](auto& p, auto&) { p.page_size = 0; }, "page_size is 0; allowed: 1 or more"},
          {dense, [](auto& p, auto&) { p.batch = -1; }, "batch is -1; allowed: 0 or more"},
          {dense, [](auto& p, auto&) { p.batch = 3; },
           "batch is 3; allowed without sequence_ids: up to num_sequences = 2"},
          {dense, [](auto& p, auto&) { p.query_len = -2; }, "query_len is -2; allowed: 0 or more"},
          {dense, [](auto& p, auto&) { p.query_len = 1 << 30; },
           "batch * query_len is 2147483648; allowed: fewer than 2^31"},
          {dense, [](auto& p, auto&) { p.seq_lens = nullptr; }, "seq_lens is null; allowed: memory for its 2 entries"},
          {dense, [](auto&, auto& b) { b.seq_lens[1] = -3; }, "seq_lens[1] is -3; allowed: at least 0"},
          {dense, [](auto&, auto& b) { b.seq_lens[1] = 49; },
           "seq_lens[1] is 49; allowed: up to max_pages * page_size = 48"},
          {dense, [](auto& p, auto&) { p.max_pages = -1; }, "max_pages is -1; allowed: 0 or more"},
          {dense, [](auto& p, auto& b) { p.page_indptr = b.seq_lens.data(); },
           "block_table and page_indptr are both given"},
          {dense, [](auto& p, auto& b) { b.sequence_ids = {0, 2}, p.sequence_ids = b.sequence_ids.data(); },
           "sequence_ids[1] is 2; allowed: 0 or more, and less than num_sequences = 2"},
          {dense, [](auto& p, auto& b) { b.cu_seqlens_q = {1, 2, 3}, p.cu_seqlens_q = b.cu_seqlens_q.data(); },
           "cu_seqlens_q[0] is 1; allowed: 0"},
          {dense, [](auto& p, auto& b) { b.cu_seqlens_q = {0, 2, 1}, p.cu_seqlens_q = b.cu_seqlens_q.data(); },
           "cu_seqlens_q[2] is 1; allowed: at least the entry before it, 2"},
          {csr, [](auto& p, auto&) { p.num_indices = -1; }, "num_indices is -1; allowed: 0 or more"},
          {csr, [](auto& p, auto&) { p.page_indices = nullptr; },
           "page_indices is null; allowed: memory for its 8 entries"},
          {csr, [](auto& p, auto&) { p.num_indices = 7; }, "page_indptr[2] is 8; allowed: up to num_indices = 7"},
          {csr, [](auto&, auto& b) { b.page_indptr[0] = -1; }, "page_indptr[0] is -1; allowed: at least 0"},
          {csr, [](auto&, auto& b) { b.seq_lens[0] = 65; },
           "seq_lens[0] is 65; allowed: up to the tokens of the sequence's pages in page_indptr, 64"},
      };
  for (const auto& [table, change, words] : cases) {
    PrefixBatch batch = batch_of(table);
    BatchPages p      = batch.pages();
    change(p, batch);
    EXPECT_THAT(refusal_of(p), HasSubstr(std::string("pagoda::PrefixPlanner::plan: ") + words));
  }
}

TEST(PrefixErrors, Rates) {
  const std::vector<std::pair<std::function<void(DecodeHeads&, DeviceRates&)>, const char*>> cases = {
      {[](auto& h, auto&) { h.num_kv_heads = 0; }, "num_kv_heads is 0; allowed: more than 0"},
      {[](auto& h, auto&) { h.num_q_heads = 12; }, "num_q_heads is 12; allowed: a multiple of num_kv_heads = 8"},
      {[](auto& h, auto&) { h.bytes_per_token = 0; }, "bytes_per_token is 0; allowed: more than 0"},
      {[](auto&, auto& d) { d.tiles.clear(); }, "tiles is empty; allowed: at least one tile"},
      {[](auto&, auto& d) { d.tiles = {{16, 1}, {16, 1}}; }, "a tile of tiles has 16 rows; allowed: more than 16"},
      {[](auto&, auto& d) { d.plain_tiles = {{8, 0}}; }, "flops_per_us of a tile"},
      {[](auto&, auto& d) { d.tiles = {{16, 0}}; }, "flops_per_us of a tile is 0; allowed: more than 0"},
      {[](auto&, auto& d) { d.tiles = {{16, 1, -1}}; }, "item_us of a tile is -1; allowed: 0 or more"},
      {[](auto&, auto& d) { d.cache_bytes_per_us = 1; },
       "cache_bytes_per_us is 1; allowed: at least memory_bytes_per_us"},
      {[](auto&, auto& d) { d.teams = 0; }, "teams is 0; allowed: more than 0"},
      {[](auto&, auto& d) { d.item_us = -1; }, "item_us is -1; allowed: 0 or more"},
      {[](auto&, auto& d) { d.list_us = -2; }, "list_us is -2; allowed: 0 or more"},
      {[](auto&, auto& d) { d.chain_rows = -1; }, "chain_rows is -1; allowed: 0 or more"},
      {[](auto&, auto& d) { d.chain_entry_us = -3; }, "chain_entry_us is -3; allowed: 0 or more"},
      {[](auto&, auto& d) { d.chain_tokens = -1; }, "chain_tokens is -1; allowed: 0 or more"},
      {[](auto&, auto& d) { d.unsplit_chain_tokens = -2; }, "unsplit_chain_tokens is -2; allowed: 0 or more"},
      {[](auto&, auto& d) { d.cache_bytes = -3; }, "cache_bytes is -3; allowed: 0 or more"},
  };
  for (const auto& [change, words] : cases) {
    DecodeHeads h = heads;
    DeviceRates d;
    change(h, d);
    EXPECT_THAT(refusal([&] { CostModel(h, d); }), HasSubstr(words));
  }
}

}  // namespace
}  // namespace pagoda::test
