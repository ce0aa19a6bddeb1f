// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "pagoda_enabled_types.hpp"

#include <pagoda/types.hpp>

#include <algorithm>
#include <vector>

namespace pagoda::bench {

/// The type of programs that measure one type: the first of fp16, bf16 and fp32 that the build has.
inline DType bench_type() {
#define PAGODA_TYPE_OF_BUILD(name) DType::name,
  const std::vector<DType> types{PAGODA_FOR_EACH_PLAIN_TYPE(PAGODA_TYPE_OF_BUILD)};
#undef PAGODA_TYPE_OF_BUILD
  for (const DType type : {DType::fp16, DType::bf16, DType::fp32})
    if (std::find(types.begin(), types.end(), type) != types.end()) return type;
  return DType::fp16;
}

}  // namespace pagoda::bench
