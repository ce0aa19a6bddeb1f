// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bench/serve/model.hpp"
#include "bench/serve/options.hpp"

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

/// Results of a run. Times are seconds of the decode of one layer; admissions and appends are separate.
namespace pagoda::serve {

struct Step {
  int live            = 0;
  std::int64_t tokens = 0;  ///< tokens of all live sequences, which a decode reads
  std::int64_t bytes  = 0;  ///< of keys and values among them
  double waste        = 0;  ///< unused share of the memory of live sequences
  double seconds      = 0;
};

/// A bare read of the same bytes, in the same run.
struct Floor {
  std::int64_t bytes = 0;
  double seconds     = 0;
  std::string shape;
};

struct Check {
  int rows     = 0;
  double worst = 0;  ///< largest error of a row, in tolerances: 1 is the limit

  void add(double error) {
    ++rows;
    if (!(error <= worst) && !std::isnan(worst)) worst = error;  // a NaN is kept
  }
  bool passed() const { return worst <= 1; }
};

struct PoolResult {
  std::string name;     ///< "contiguous", "paged"
  std::string backend;  ///< of the plan
  int max_sequences     = 0;
  std::int64_t pages    = 0;
  int page_size         = 0;
  std::int64_t bytes    = 0;  ///< allocated
  std::int64_t admitted = 0, finished = 0;
  double fill_seconds   = 0;  ///< writing prompts
  double append_seconds = 0;  ///< writing the tokens of all steps
  std::vector<Step> steps;    ///< those after the warm-up
  Floor floor;                ///< for a median step's bytes
  Check check;
};

/// The same sequences in both pools, decoded in turns.
struct SameBatch {
  int sequences             = 0;
  std::int64_t bytes        = 0;
  double contiguous_seconds = 0, paged_seconds = 0;
};

struct TraceSummary {
  std::string name;
  int requests = 0, left_out = 0;  ///< left_out: longer than max_len
  double mean_input = 0, mean_output = 0;
};

struct Results {
  Options options;
  Model model{};
  TraceSummary trace;
  int max_len              = 0;
  std::int64_t token_bytes = 0;
  std::int64_t budget      = 0;  ///< bytes for each pool
  PoolResult contiguous, paged;
  SameBatch same_batch;

  bool passed() const { return contiguous.check.passed() && paged.check.passed(); }
};

/// Statistics of the steps of a pool.
struct Summary {
  double mean_live = 0, mean_tokens = 0, mean_bytes = 0, mean_waste = 0;
  int peak_live                = 0;
  double step_seconds          = 0;  ///< median
  double tokens_per_second     = 0;  ///< median over the steps, one new token for each live sequence
  double bytes_per_second      = 0;  ///< median over the steps
  double fraction_of_streaming = 0;  ///< of the bare read of a median step's bytes
};
Summary summarise(const PoolResult& pool);

double median(std::vector<double> x);

}  // namespace pagoda::serve
