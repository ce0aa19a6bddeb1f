// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/support/array.hpp"
#include "tests/support/sample.hpp"

#include <string>

namespace pagoda::test {

/// Differences between outputs and the reference.
struct Comparison {
  int wrong    = 0;  ///< rows of out or lse beyond their tolerance
  double worst = 0;  ///< largest error of a row of out, in tolerances
  std::string report{};
};

/// out (query token, q head, dim) and, unless null, lse (query token, q head), as downloaded, against the reference.
/// probability: what the kernel rounds probabilities to. truncated_steps: number of steps of a score's sum that
/// truncate instead of rounding; 0: none. leeway: multiplies all tolerances. rounds_numbers: the kernel rounds the
/// numbers of fp8_ds_mla to bf16, and not its queries. The reference rounds them likewise.
template <class Space, class T>
Comparison compare(const Sample<T>& sample, const Array<Space>& out, const Array<Space>* lse, DType probability,
                   int truncated_steps = 0, double leeway = 1, bool rounds_numbers = false);

}  // namespace pagoda::test
