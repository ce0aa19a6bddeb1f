// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/types.hpp>

#include <cstdint>
#include <string>

namespace pagoda::serve {

/// The command-line options.
struct Options {
  std::string trace_file;
  std::string model  = "Llama-3-8B";
  DType type         = DType::fp16;
  double memory_gb   = 8;  ///< for each pool; divided by scale
  int scale          = 1;
  int page_size      = 16;
  int max_len        = 0;  ///< tokens a contiguous slot reserves; 0: the trace's longest request
  int steps          = 32;
  int warmup         = 2;
  int check          = 8;
  std::uint64_t seed = 1;
  std::string json_file;
};

}  // namespace pagoda::serve
