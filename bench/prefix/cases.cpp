// SPDX-License-Identifier: Apache-2.0
#include "bench/prefix/cases.hpp"

#include "bench/serve/scheduler.hpp"
#include "bench/serve/trace.hpp"
#include "tests/prefix/pat_trees.hpp"

#include <pagoda/error.hpp>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <utility>

namespace pagoda::bench {

namespace {

using test::PrefixBatch;

PrefixCase tree_case(const std::string& name, std::pair<int, int> heads, const std::vector<int>& nodes,
                     const std::vector<int>& tokens) {
  PrefixCase c;
  c.name        = name;
  c.num_q_heads = heads.first, c.num_kv_heads = heads.second;
  c.batch = [nodes, tokens] { return test::tree_batch(nodes, tokens); };
  c.ways  = {Way::plain, Way::packed, Way::packed32};
  c.warm  = true;
  return c;
}

/// Sequences of chosen pages, in the order of their tokens, out of `tokens` tokens that each has for itself.
PrefixCase chosen_pages(int sequences, int tokens, int page_size, int percent, bool per_head) {
  PrefixCase c;
  c.page_size      = page_size;
  const int of     = tokens / page_size;
  const int chosen = std::max(of * percent / 100, 1);
  const int rows   = per_head ? sequences * c.num_kv_heads : sequences;
  c.name  = pagoda::detail::concat("chosen", percent, per_head ? "-per-head" : "", "/B", sequences, "/S", tokens);
  c.ways  = {per_head ? Way::per_head : Way::plain};
  c.batch = [=, size = c.page_size, of_sequence = rows / sequences] {
    PrefixBatch batch;
    batch.page_size = size;
    std::mt19937 random(1);
    std::vector<int> all(static_cast<std::size_t>(of)), ids(static_cast<std::size_t>(sequences) * of);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), random);
    for (int r = 0; r < rows; ++r) {
      std::iota(all.begin(), all.end(), 0);
      std::shuffle(all.begin(), all.end(), random);
      std::sort(all.begin(), all.begin() + chosen);
      std::vector<int> row(static_cast<std::size_t>(chosen));
      for (int i = 0; i < chosen; ++i) row[i] = ids[std::size_t(r / of_sequence) * of + all[i]];
      batch.rows.push_back(row);
    }
    batch.seq_lens.assign(batch.rows.size(), chosen * size);
    return batch;
  };
  return c;
}

/// Sequences of `context` tokens, and behind them `drafts` drafts, which are the query tokens.
PrefixCase draft_case(int sequences, int context, int drafts, std::pair<int, int> heads = {32, 8}) {
  PrefixCase c;
  c.name        = pagoda::detail::concat("drafts", drafts, "/B", sequences, "/S", context);
  c.num_q_heads = heads.first, c.num_kv_heads = heads.second;
  c.page_size = 16, c.drafts = drafts;
  c.ways  = {Way::tree, Way::chain};
  c.batch = [=, size = c.page_size] {
    PrefixBatch batch;
    batch.page_size = size, batch.query_len = drafts;
    const int length = context + drafts, pages = (length + size - 1) / size;
    std::vector<int> ids(static_cast<std::size_t>(sequences) * pages);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(1));
    for (auto row = ids.begin(); row != ids.end(); row += pages) batch.rows.emplace_back(row, row + pages);
    batch.seq_lens.assign(batch.rows.size(), length);
    return batch;
  };
  return c;
}

/// Chosen pages of all sizes. The dense decodes of the same caches (100%) are for comparison.
void add_chosen_pages(std::vector<PrefixCase>& cases, int sequences, int tokens) {
  for (const int page_size : {16, 1, 64})
    for (const int percent : {5, 20, 100})
      for (const bool per_head : {false, true})
        if (page_size == 16 || percent < 100 || !per_head)
          cases.push_back(chosen_pages(sequences, tokens, page_size, percent, per_head));
}

/// The live sequences of a server as page tables. Prompts share the pages of equal blocks; output tokens are their own.
PrefixBatch live_batch(const serve::Trace& trace, const std::vector<serve::Live>& live, int page_size) {
  PrefixBatch batch;
  batch.page_size = page_size;
  std::map<std::int64_t, int> first_page;  // of a block
  int next        = 0;
  const int block = trace.block_tokens / page_size;
  for (const serve::Live& s : live) {
    const serve::Request& r = trace.requests[static_cast<std::size_t>(s.number) % trace.requests.size()];
    std::vector<int> row;
    for (int i = 0; i < r.input_length / trace.block_tokens; ++i) {
      const auto [found, is_new] = first_page.try_emplace(r.hash_ids[i], next);
      if (is_new) next += block;
      for (int page = 0; page < block; ++page) row.push_back(found->second + page);
    }
    while (static_cast<int>(row.size()) * page_size < s.length) row.push_back(next++);
    batch.rows.push_back(row);
    batch.seq_lens.push_back(s.length);
  }
  std::vector<int> ids(static_cast<std::size_t>(next));
  std::iota(ids.begin(), ids.end(), 0);
  std::shuffle(ids.begin(), ids.end(), std::mt19937(1));
  for (auto& row : batch.rows)
    for (int& page : row) page = ids[page];
  return batch;
}

}  // namespace

const char* name_of(Way way) {
  constexpr const char* names[] = {"plain", "packed", "packed32", "per-head", "tree", "chain"};
  return names[static_cast<int>(way)];
}

std::string PrefixCase::full_name(DType type, Way way, bool is_warm) const {
  return pagoda::detail::concat("prefix/", name_of(way), "/", pagoda::name_of(type), "/", num_q_heads, "x",
                                num_kv_heads, "x", head_dim, "/", name, "/page", page_size, is_warm ? "/warm" : "");
}

PrefixWork work_of(const PrefixBatch& batch) {
  PrefixWork w;
  std::map<int, int> used;  // tokens of a page
  for (std::size_t s = 0; s < batch.rows.size(); ++s) {
    w.tokens += batch.seq_lens[s];
    for (std::size_t i = 0; i < batch.rows[s].size(); ++i) {
      const int tokens = std::clamp(batch.seq_lens[s] - static_cast<int>(i) * batch.page_size, 0, batch.page_size);
      int& most        = used[batch.rows[s][i]];
      most             = std::max(most, tokens);
      w.pages          = std::max<std::int64_t>(w.pages, batch.rows[s][i] + 1);
    }
  }
  for (const auto& [page, tokens] : used) w.unique_tokens += tokens;
  return w;
}

std::vector<PrefixCase> device_prefix_cases() {
  std::vector<PrefixCase> cases;
  for (const auto& heads : {std::pair(32, 8), {32, 32}, {16, 8}, {64, 8}})
    for (const auto& tree : test::pat_trees())
      cases.push_back(tree_case("tree" + std::to_string(tree.number), heads, tree.nodes, tree.tokens));
  cases.push_back(tree_case("cascade256", {32, 8}, {1, 256}, {4096, 128}));
  add_chosen_pages(cases, 32, 8192);
  for (const int drafts : {8, 32, 64, 128}) cases.push_back(draft_case(32, 4096, drafts));
  return cases;
}

std::vector<PrefixCase> host_prefix_cases() {
  std::vector<PrefixCase> cases;
  for (const auto& heads : {std::pair(32, 8), {32, 32}, {16, 8}, {64, 8}})
    for (const int number : {1, 2, 4, 5, 16}) {
      const auto& tree = test::pat_trees()[number - 1];
      cases.push_back(tree_case("tree" + std::to_string(number), heads, tree.nodes, tree.tokens));
    }
  cases.push_back(tree_case("cascade32", {32, 8}, {1, 32}, {2048, 128}));
  add_chosen_pages(cases, 8, 2048);
  for (const int drafts : {8, 32}) cases.push_back(draft_case(4, 2048, drafts));
  return cases;
}

std::vector<PrefixCase> small_prefix_cases() {
  std::vector<PrefixCase> cases = {tree_case("small-tree", {8, 2}, {1, 2, 8}, {256, 64, 32})};
  for (const int page_size : {16, 1})
    for (const bool per_head : {false, true}) cases.push_back(chosen_pages(2, 320, page_size, 20, per_head));
  for (const int drafts : {9, 70}) cases.push_back(draft_case(2, 100, drafts, {8, 2}));
  return cases;
}

std::vector<PrefixCase> trace_cases(const std::string& file, int sequences, int scale) {
  constexpr int page_size = 16, samples = 3, steps_between = 100;
  const auto trace = std::make_shared<const serve::Trace>(serve::scaled(serve::read_trace(file), scale));
  // Replayed more than once, a request would share all of its prompt with itself.
  if (static_cast<std::size_t>(sequences) > trace->requests.size()) return {};
  serve::Scheduler scheduler(trace->requests,
                             {sequences, std::int64_t(sequences) * (trace->longest() / page_size + 1), page_size});
  std::vector<PrefixCase> cases;
  for (int step = 0; static_cast<int>(cases.size()) < samples; ++step) {
    scheduler.admit();
    scheduler.grow();
    if (step % steps_between == steps_between / 2) {
      PrefixCase c;
      c.name      = pagoda::detail::concat(std::filesystem::path(file).stem().string(), "/B", sequences, "/step", step);
      c.page_size = page_size;
      c.batch     = [trace, live = scheduler.live()] { return live_batch(*trace, live, page_size); };
      cases.push_back(c);
    }
    scheduler.retire();
  }
  return cases;
}

}  // namespace pagoda::bench
