#include <gtest/gtest.h>

#include <pagoda/version.hpp>

TEST(Version, LibraryAndHeadersAgree) { EXPECT_STREQ(pagoda::version(), PAGODA_VERSION_STRING); }

TEST(Version, NumberIsMadeOfItsParts) {
  EXPECT_EQ(PAGODA_VERSION, PAGODA_VERSION_MAJOR * 10000 + PAGODA_VERSION_MINOR * 100 + PAGODA_VERSION_PATCH);
}
