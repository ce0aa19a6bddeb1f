// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <string_view>

namespace pagoda::detail {

/// Whether the library may write warnings on standard error. The environment variable PAGODA_WARN=0 turns them off.
inline bool warnings_enabled() {
  const char* const setting = std::getenv("PAGODA_WARN");
  return !setting || std::string_view(setting) != "0";
}

}  // namespace pagoda::detail
