// SPDX-License-Identifier: Apache-2.0
#include "src/plan/prefix/planner.hpp"
#include "tests/prefix/pat_trees.hpp"
#include "tests/prefix/prefix_batch.hpp"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>

/// How long the planner of shared prefixes takes, on one core, with tables in the core's caches.
namespace pagoda::bench {
namespace {

using namespace detail;
using test::PrefixBatch;

constexpr DecodeHeads heads{32, 8, 128, 128, 512};
constexpr int sequences = 1024, pages = 64;

/// 1024 sequences of 64 pages of 16 tokens. shared(b): how many pages, and of which earlier sequence.
template <class Shared>
PrefixBatch batch_of(const Shared& shared) {
  PrefixBatch batch;
  int next = 0;
  for (int b = 0; b < sequences; ++b) {
    const auto [other, n] = shared(b);
    std::vector<int> row;
    if (n > 0) row.assign(batch.rows[other].begin(), batch.rows[other].begin() + n);
    while (static_cast<int>(row.size()) < pages) row.push_back(next++);
    batch.rows.push_back(row);
  }
  std::vector<int> shuffled(static_cast<std::size_t>(next));
  for (int i = 0; i < next; ++i) shuffled[i] = i;
  std::shuffle(shuffled.begin(), shuffled.end(), std::mt19937(1));
  for (auto& row : batch.rows)
    for (int& page : row) page = shuffled[page];
  batch.seq_lens.assign(sequences, 16 * pages - 3);
  return batch;
}

void report(benchmark::State& state, const PrefixPlanner& planner, bool packed) {
  state.counters["entries"] = static_cast<double>(planner.list().entries.size());
  state.counters["nodes"]   = static_cast<double>(planner.forest().nodes().size());
  if (!packed) return;
  state.counters["plain_us"]  = planner.plain_us();
  state.counters["packed_us"] = planner.packed_us();
}

void plan(benchmark::State& state, PrefixBatch batch) {
  const BatchPages p = batch.pages();
  PrefixPlanner planner(heads, {});
  bool packed = false;
  for (auto _ : state) benchmark::DoNotOptimize(packed = planner.plan(p));
  report(state, planner, packed);
}

void holds(benchmark::State& state, PrefixBatch batch) {
  const BatchPages p = batch.pages();
  PrefixPlanner planner(heads, {});
  planner.plan(p);
  bool held = false;
  for (auto _ : state) benchmark::DoNotOptimize(held = planner.holds(p));
  if (!held) state.SkipWithError("the plan does not hold for its own tables");
}

void add(const std::string& name, const PrefixBatch& batch) {
  benchmark::RegisterBenchmark(("plan/" + name).c_str(), plan, batch)->Unit(benchmark::kMicrosecond);
  benchmark::RegisterBenchmark(("holds/" + name).c_str(), holds, batch)->Unit(benchmark::kMicrosecond);
}

void add_all() {
  std::mt19937 random(2);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  add("1024x64/nothing_shared", batch_of([](int) { return std::pair(0, 0); }));
  add("1024x64/one_prompt_of_40", batch_of([](int b) { return std::pair(0, b > 0 ? 40 : 0); }));
  add("1024x64/8_prompts_64_documents", batch_of([](int b) {
        return b % 16 > 0 ? std::pair(b - b % 16, 40) : std::pair(b % 128 > 0 ? b - b % 128 : 0, b % 128 > 0 ? 20 : 0);
      }));
  add("1024x64/random_forest",
      batch_of([&](int b) { return b > 0 ? std::pair(below(b), below(pages)) : std::pair(0, 0); }));
  add("1024x64/binary_tree", batch_of([](int b) {  // of depth 10, six pages a level
        for (int level = 9; b > 0 && level >= 0; --level)
          if (b % (1 << (9 - level + 1)) != 0) return std::pair(b - (b & -b), 6 * level);
        return std::pair(0, 0);
      }));
  for (const auto& tree : test::pat_trees())
    add("pat_tree:" + std::to_string(tree.number), test::tree_batch(tree.nodes, tree.tokens));
}

}  // namespace
}  // namespace pagoda::bench

int main(int argc, char** argv) {
  pagoda::bench::add_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
