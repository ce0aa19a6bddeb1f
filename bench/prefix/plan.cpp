// SPDX-License-Identifier: Apache-2.0
#include "bench/prefix/plan.hpp"

#include "src/plan/prefix/planner.hpp"
#include "tests/prefix/pat_trees.hpp"
#include "tests/prefix/prefix_batch.hpp"

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <utility>

namespace pagoda::bench {
namespace {

using namespace pagoda::detail;
using test::PrefixBatch;

constexpr DecodeHeads heads{32, 8, 128, 128, 512};
/// The default rates, with chains as the hand-tuned kernels of sm_90 have them.
DeviceRates rates() {
  DeviceRates r;
  r.chain_rows = 64, r.chain_tokens = 64, r.unsplit_chain_tokens = 256;
  return r;
}

/// Sequences of so many pages of 16 tokens. shared(b): of which earlier sequence, and how many pages. ids: number of
/// page ids, which then stand at many places; 0: each page has its own, as in a cache.
template <class Shared>
PrefixBatch batch_of(int sequences, int pages, const Shared& shared, int ids = 0) {
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
    for (int& page : row) page = ids > 0 ? shuffled[page] % ids : shuffled[page];
  batch.seq_lens.assign(sequences, 16 * pages - 3);
  return batch;
}

/// The fastest of many calls.
template <class Call>
double least_seconds(const Call& call) {
  double least = std::numeric_limits<double>::infinity();
  const Kokkos::Timer all;
  for (int i = 0; i < 10 || (i < 2000 && all.seconds() < 0.2); ++i) {
    const Kokkos::Timer timer;
    call();
    least = std::min(least, timer.seconds());
  }
  return least;
}

Outcome plan(PrefixBatch batch) {
  const BatchPages p = batch.pages();
  PrefixPlanner planner(heads, rates());
  bool packed     = false;
  Outcome o       = {least_seconds([&] { packed = planner.plan(p); }), {}, {}, {}};
  Counters& more  = o.counters;
  more["entries"] = static_cast<double>(planner.list().entries.size());
  more["nodes"]   = static_cast<double>(planner.forest().nodes().size());
  if (packed) more["plain_us"] = planner.plain_us(), more["packed_us"] = planner.packed_us();
  return o;
}

Outcome holds(PrefixBatch batch) {
  const BatchPages p = batch.pages();
  PrefixPlanner planner(heads, rates());
  planner.plan(p);
  bool held = true;
  return {least_seconds([&] { held = held && planner.holds(p) && planner.same_batch(p); }),
          {},
          {},
          held ? "" : "the plan does not hold for its own tables"};
}

}  // namespace

void add_planning(Harness& harness) {
  const auto add = [&](const std::string& name, const PrefixBatch& batch) {
    harness.add("plan/" + name, [batch] { return plan(batch); });
    harness.add("holds/" + name, [batch] { return holds(batch); });
  };
  constexpr int sequences = 1024, pages = 64;
  std::mt19937 random(2);
  const auto below  = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const auto prompt = [](int length) { return [=](int b) { return std::pair(0, b > 0 ? length : 0); }; };
  const auto forest = [&](int length) {
    return [&below, length](int b) { return b > 0 ? std::pair(below(b), below(length)) : std::pair(0, 0); };
  };
  add("1024x64/nothing_shared", batch_of(sequences, pages, prompt(0)));
  add("1024x64/one_prompt_of_40", batch_of(sequences, pages, prompt(40)));
  add("1024x64/8_prompts_64_documents", batch_of(sequences, pages, [](int b) {
        return b % 16 > 0 ? std::pair(b - b % 16, 40) : std::pair(b % 128 > 0 ? b - b % 128 : 0, b % 128 > 0 ? 20 : 0);
      }));
  add("1024x64/random_forest", batch_of(sequences, pages, forest(pages)));
  add("1024x64/binary_tree", batch_of(sequences, pages, [](int b) {  // of depth 10, six pages a level
        for (int level = 9; b > 0 && level >= 0; --level)
          if (b % (1 << (9 - level + 1)) != 0) return std::pair(b - (b & -b), 6 * level);
        return std::pair(0, 0);
      }));
  for (const auto& [batch, columns] : {std::pair(1024, 512), {256, 8192}}) {
    const std::string name = std::to_string(batch) + "x" + std::to_string(columns);
    add(name + "/one_prompt_of_5_8", batch_of(batch, columns, prompt(columns * 5 / 8)));
    add(name + "/random_forest", batch_of(batch, columns, forest(columns)));
    add(name + "/one_prompt_of_5_8_64_ids", batch_of(batch, columns, prompt(columns * 5 / 8), 64));
    add(name + "/random_forest_64_ids", batch_of(batch, columns, forest(columns), 64));
  }
  for (const auto& tree : test::pat_trees())
    add("pat_tree:" + std::to_string(tree.number), test::tree_batch(tree.nodes, tree.tokens));
}

}  // namespace pagoda::bench
