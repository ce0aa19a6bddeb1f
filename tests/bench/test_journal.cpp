// SPDX-License-Identifier: Apache-2.0
#include "bench/common/journal.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>

namespace pagoda::bench {
namespace {

class Journals : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::remove(file_); }
  void TearDown() override { std::filesystem::remove(file_); }

  std::string text() const {
    std::ostringstream all;
    all << std::ifstream(file_).rdbuf();
    return all.str();
  }
  void append(const std::string& text) const { std::ofstream(file_, std::ios::app) << text; }

  const std::string file_ =
      testing::TempDir() + "pagoda_journal_" + testing::UnitTest::GetInstance()->current_test_info()->name() + ".jsonl";
  const Context context_{{"git", "abc"}, {"device", "a \"device\""}, {"date", "today"}};
};

TEST_F(Journals, WritesEachBenchmarkAtOnce) {
  Journal journal(file_, context_);
  EXPECT_FALSE(journal.has("a/manual_time"));
  journal.add("a/manual_time", 2e-6, {{"floor_us", 1.5}}, "label");
  EXPECT_EQ(text(), R"({"context":{"date":"today","device":"a \"device\"","git":"abc"}})"
                    "\n"
                    R"({"name":"a/manual_time","run_type":"iteration","real_time":2.0,"time_unit":"us","floor_us":1.5,)"
                    R"("label":"label"})"
                    "\n");
}

TEST_F(Journals, GoesOnWhereARunWasKilled) {
  Journal(file_, context_).add("a", 1, {}, "");
  const std::string complete = text();
  append(R"({"name":"b","real_t)");
  Context later = context_;
  later["date"] = "tomorrow";
  Journal journal(file_, later);
  EXPECT_TRUE(journal.has("a"));
  EXPECT_FALSE(journal.has("b"));
  EXPECT_EQ(text(), complete);
  journal.add("b", 1, {}, "");
  EXPECT_TRUE(Journal(file_, context_).has("b"));
}

TEST_F(Journals, FailuresAreToldAndTriedAgain) {
  Journal(file_, context_).add_error("a", "it \"broke\"");
  EXPECT_NE(text().find(R"("error_message":"it \"broke\"")"), std::string::npos);
  EXPECT_FALSE(Journal(file_, context_).has("a"));
  EXPECT_EQ(text().find("broke"), std::string::npos);
}

TEST_F(Journals, RefusesAnotherBuildOrDevice) {
  Journal(file_, context_).add("a", 1, {}, "");
  const std::string before = text();
  for (const char* key : {"git", "device"}) {
    Context other = context_;
    other[key]    = "another";
    EXPECT_THROW(Journal(file_, other), std::runtime_error) << key;
  }
  EXPECT_EQ(text(), before);
}

TEST_F(Journals, RefusesWhatItDidNotWrite) {
  append("a table\nof two lines\n");
  EXPECT_THROW(Journal(file_, context_), std::runtime_error);
  EXPECT_EQ(text(), "a table\nof two lines\n");
  EXPECT_THROW(Journal("/nowhere/at/all.jsonl", context_), std::runtime_error);
}

TEST(Journal, KeepsNothingByDefault) {
  Journal journal;
  journal.add("a", 1, {}, "");
  EXPECT_FALSE(journal.is_on());
  EXPECT_FALSE(journal.has("a"));
}

}  // namespace
}  // namespace pagoda::bench
