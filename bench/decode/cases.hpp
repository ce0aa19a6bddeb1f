// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bench/common/case.hpp"

#include <pagoda/types.hpp>

#include <optional>
#include <string_view>
#include <vector>

/// The list of problems, and their bars. Independent of the device.
namespace pagoda::bench {

/// The case's bar in microseconds, from the floor.
std::optional<double> bar_us(const Case& c, std::string_view backend, double floor_us);

/// All cases for a GPU: suites F and S (fp16 and bf16, a few rows in fp32), page sizes, contiguous caches, small and
/// skewed batches, the one-head rows of K1, latent caches, large groups and several query tokens, rows of any length.
std::vector<Case> device_cases();
/// A scaled-down list for CPUs.
std::vector<Case> host_cases();
/// The cases whose type is among `types`.
std::vector<Case> of_types(std::vector<Case> cases, const std::vector<DType>& types);

}  // namespace pagoda::bench
