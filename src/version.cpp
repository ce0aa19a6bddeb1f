// SPDX-License-Identifier: Apache-2.0
#include <pagoda/version.hpp>

#include "backends/host/isa.hpp"
#include "pagoda_enabled_types.hpp"
#include "src/base/spaces.hpp"

#include <Kokkos_Core.hpp>

#include <string>

namespace pagoda {
namespace {

std::string configuration_text() {
  std::string text = "Pagoda " PAGODA_VERSION_STRING "; spaces:";
#define PAGODA_NAME(Space) text += std::string(" ") + Space::name();
  PAGODA_FOR_EACH_SPACE(PAGODA_NAME)
#undef PAGODA_NAME
#define PAGODA_NAME(name) " " #name
  text += "; types:" PAGODA_FOR_EACH_ENABLED_TYPE(PAGODA_NAME);
#undef PAGODA_NAME
  text += "; Kokkos " + std::to_string(KOKKOS_VERSION_MAJOR) + "." + std::to_string(KOKKOS_VERSION_MINOR) + "." +
          std::to_string(KOKKOS_VERSION_PATCH);
  text += "; host instructions: " + std::string(detail::name_of(detail::best_host_isa())) +
          " (available: " + detail::host_isas() +
          "); compiled with -march=native: " + (PAGODA_IS_NATIVE ? "yes" : "no");
#if defined(PAGODA_DEBUG_BOUNDS)
  text += "; bounds checks: yes";
#else
  text += "; bounds checks: no";
#endif
  return text;
}

}  // namespace

const char* version() noexcept { return PAGODA_VERSION_STRING; }

const char* configuration() noexcept {
  try {
    static const std::string text = configuration_text();
    return text.c_str();
  } catch (...) {  // no memory for the text
    return "Pagoda " PAGODA_VERSION_STRING;
  }
}

}  // namespace pagoda
