// SPDX-License-Identifier: Apache-2.0
#include "bench/decode/cases.hpp"
#include "src/plan/faster_backend.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <string>

namespace pagoda::bench {
namespace {

/// Microseconds by benchmark name, from lines of Google Benchmark's JSON.
std::map<std::string, double> times_in(const std::string& path) {
  std::map<std::string, double> times;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    constexpr const char *name_key = "\"name\":\"", *us_key = "\"us\":", *suffix = "/manual_time";
    const auto name = line.find(name_key), end = line.find(suffix), us = line.find(us_key);
    if (name == line.npos || end == line.npos || us == line.npos) continue;
    const auto begin                       = name + std::string(name_key).size();
    times[line.substr(begin, end - begin)] = std::stod(line.substr(us + std::string(us_key).size()));
  }
  return times;
}

detail::DecodeBounds bounds_of(const Case& c, int num_sms) {
  return {.type            = c.type,
          .group           = c.num_q_heads / c.num_kv_heads,
          .head_dim        = c.head_dim,
          .max_query_len   = c.num_q_tokens,
          .paged           = c.paged(),
          .rows            = std::int64_t(c.batch()) * c.num_kv_heads,
          .max_seq_len     = c.longest(),
          .capacity_tokens = c.pages() * c.page_tokens(),
          .num_kv_heads    = c.num_kv_heads,
          .sm              = 90,
          .num_sms         = num_sms};
}

/// One long sequence beside short ones: generic is 3% faster on the H100, tuned 1% on the H200. The rule does not know
/// the card, and stays with tuned.
bool cards_disagree(const Case& c) { return c.name("tuned").find("/one-long/") != std::string::npos; }

class DefaultBackend : public testing::TestWithParam<const char*> {};

TEST_P(DefaultBackend, IsNeverMuchSlowerThanTheOther) {
  const auto times = times_in(std::string(PAGODA_BENCH_RESULTS "/") + GetParam());
  int compared = 0, generic_chosen = 0;
  for (const Case& c : device_cases()) {
    const auto tuned = times.find(c.name("tuned")), generic = times.find(c.name("generic"));
    if (tuned == times.end() || generic == times.end() || cards_disagree(c)) continue;
    const bool chosen = detail::why_generic_is_faster(bounds_of(c, 132)) != nullptr;
    const double ours = chosen ? generic->second : tuned->second, other = chosen ? tuned->second : generic->second;
    EXPECT_LE(ours, 1.005 * other + 0.5) << c.name(chosen ? "generic" : "tuned");
    ++compared, generic_chosen += chosen;
  }
  EXPECT_GT(compared, 200) << "rows of both backends in the file";
  EXPECT_GT(generic_chosen, 20);
  EXPECT_LT(generic_chosen, compared / 3);
}

INSTANTIATE_TEST_SUITE_P(Results, DefaultBackend, testing::Values("decode-h200.json", "decode-h100.jsonl"),
                         [](const auto& file) { return "Of" + std::to_string(file.index); });

}  // namespace
}  // namespace pagoda::bench
