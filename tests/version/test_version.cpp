// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <pagoda/version.hpp>

#include "pagoda_enabled_types.hpp"

#include <Kokkos_Core.hpp>

#include <string>

TEST(Version, LibraryAndHeadersAgree) { EXPECT_STREQ(pagoda::version(), PAGODA_VERSION_STRING); }

TEST(Version, NumberIsMadeOfItsParts) {
  EXPECT_EQ(PAGODA_VERSION, PAGODA_VERSION_MAJOR * 10000 + PAGODA_VERSION_MINOR * 100 + PAGODA_VERSION_PATCH);
}

TEST(Version, ConfigurationNamesWhatWasBuilt) {
  const std::string text = pagoda::configuration();
  for (const std::string& part : {std::string("Pagoda ") + PAGODA_VERSION_STRING + ";",
                                  std::string("spaces: ") + Kokkos::DefaultExecutionSpace::name(),
                                  std::string("Kokkos ") + std::to_string(KOKKOS_VERSION_MAJOR) + ".",
                                  std::string("; host instructions: "), std::string("bounds checks: ")})
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
#define PAGODA_NAME(name) EXPECT_NE((text + ";").find(" " #name), std::string::npos) << #name << " is not in: " << text;
  PAGODA_FOR_EACH_ENABLED_TYPE(PAGODA_NAME)
#undef PAGODA_NAME
  EXPECT_EQ(text.find('\n'), std::string::npos);
}
