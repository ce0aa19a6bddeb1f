// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bench/serve/model.hpp"
#include "bench/serve/options.hpp"

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

/// What a run has found. Times are seconds, of the decode of one layer alone: admissions and appends are apart.
namespace pagoda::serve {

struct Step {
  int live            = 0;
  std::int64_t tokens = 0;  ///< held by all live sequences: what a decode reads
  std::int64_t bytes  = 0;  ///< of keys and values among them
  double waste        = 0;  ///< share of the memory taken by live sequences that holds no token
  double seconds      = 0;
};

/// A bare read of as many bytes, in the same run.
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
    if (!(error <= worst) && !std::isnan(worst)) worst = error;  // a NaN comes in and stays
  }
  bool passed() const { return worst <= 1; }
};

struct PoolResult {
  std::string name;     ///< "contiguous", "paged"
  std::string backend;  ///< that decoded
  int max_sequences     = 0;
  std::int64_t pages    = 0;
  int page_size         = 0;
  std::int64_t bytes    = 0;  ///< allocated
  std::int64_t admitted = 0, finished = 0;
  double fill_seconds   = 0;  ///< writing prompts
  double append_seconds = 0;  ///< writing the tokens of all steps
  std::vector<Step> steps;    ///< those after the warm-up
  Floor floor;                ///< of a median step's bytes
  Check check;
};

/// The same sequences at the same lengths in both pools, decoded in turns.
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

/// Figures over the steps of a pool.
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
