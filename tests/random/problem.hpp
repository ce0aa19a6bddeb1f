// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/support/scene.hpp"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace pagoda::test::random {

/// A token that is not N(0, 1), in every kv head.
struct Plant {
  enum class Kind {
    heavy,     ///< a key that draws about `probability`
    nan_key,   ///< a key of NaNs
    nan_value  ///< a value of NaNs
  };
  Kind kind = Kind::heavy;
  int entry = 0, token = 0;
  double probability    = 0.3;
  std::uint64_t payload = ~std::uint64_t(0);  ///< bits of the NaN's mantissa (see nan_of)
};

/// One decode.
struct Step {
  Shape shape;
  Placement placement;
  std::vector<Plant> plants{};
};

/// Decodes with one plan.
struct Problem {
  DType type     = DType::fp32;
  bool for_tuned = false;  ///< the hand-tuned CUDA kernels support it on sm_90
  /// The plan is made for the first. They differ in lengths, query tokens, tables and numbers, not in heads, dims,
  /// score options and strides.
  std::vector<Step> steps{};
  std::vector<float> alibi_slopes{}, sinks{};  ///< one for each query head, where the shape asks for them
  // Options of the plan (max_batch is in the placement).
  int max_seq_len = 0, max_query_len = 1, max_query_tokens = 0;
  bool programmatic_launch = false;
  bool other_instance      = false;  ///< some decodes run on another instance than the plan's
  bool as_list             = false;  ///< the first batch is decoded as a list of entries, too
};

/// Features to leave out, to look for other errors.
struct Without {
  bool nan          = false;  ///< NaNs in visible keys and values
  bool huge_windows = false;  ///< windows of about 2^31 - 1 tokens
};

/// The problem of a seed. for_tuned: one that the hand-tuned CUDA kernels support.
Problem draw(std::uint64_t seed, DType type, bool for_tuned, const Without& without = {});

/// The problem that follows from the numbers of a fuzzer. bits: returns 64 bits.
Problem draw(const std::function<std::uint64_t()>& bits, DType type);

/// Simpler problems, one change each. The largest simplifications come first.
std::vector<Problem> simpler(const Problem& problem);

std::string describe(const Problem& problem);

}  // namespace pagoda::test::random
