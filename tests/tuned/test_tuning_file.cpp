// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/tuned/tuning_file.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

namespace pagoda::tuned {
namespace {

constexpr const char *device = "NVIDIA A100-SXM4-80GB", *head = "pagoda-tuning = 1\ndevice = NVIDIA A100-SXM4-80GB\n";

/// Sets or unsets an environment variable for its lifetime.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* const before = std::getenv(name)) before_ = before;
    set(value);
  }
  Variable(const Variable&)            = delete;
  Variable& operator=(const Variable&) = delete;
  ~Variable() { set(before_ ? before_->c_str() : nullptr); }

 private:
  void set(const char* value) const { value ? setenv(name_, value, 1) : unsetenv(name_); }
  const char* name_;
  std::optional<std::string> before_;
};

TEST(TuningFile, NumbersAreRead) {
  Speed speed;
  EXPECT_EQ(parse_tuning(std::string("# measured today\n\n") + head +
                             "bytes_per_us = 1.9e6  # built in: 1.896e+06\r\n\tmerge2_us=0\nstream_us = 5",
                         device, speed),
            "");
  Speed expected;
  expected.bytes_per_us = 1.9e6, expected.merge2_us = 0, expected.stream_us = 5;
  EXPECT_EQ(speed, expected);
  EXPECT_EQ(parse_tuning("pagoda-tuning = 1\ndevice = any\nmerge1_us = 9", "another card", speed), "");
  EXPECT_EQ(speed.merge1_us, 9);
}

TEST(TuningFile, EveryNumberCanBeSet) {
  for (const TuningKey& key : tuning_keys()) {
    Speed speed;
    const double value = Speed{}.*key.member * 1.25;
    EXPECT_EQ(parse_tuning(head + std::string(key.name) + " = " + std::to_string(value), device, speed), "");
    EXPECT_NEAR(speed.*key.member, value, 1e-6 * value) << key.name;
    speed.*key.member = Speed{}.*key.member;
    EXPECT_EQ(speed, Speed{}) << key.name << " sets something else too";
  }
  EXPECT_EQ(tuning_keys().size() * sizeof(double), sizeof(Speed)) << "a number that no file can set";
}

TEST(TuningFile, WhatIsWrongIsSaidAndNothingIsSet) {
  const std::string good = head;
  const struct {
    std::string text, reason;
  } broken[] = {
      {"", "it does not begin with the keys"},
      {"pagoda-tuning = 1\n", "it does not begin with the keys"},
      {"{\"bytes_per_us\": 1}", "line 1: \"{\\\"bytes"},
      {"bytes_per_us = 2e6\n", "line 1: the first key is \"bytes_per_us\"; allowed: \"pagoda-tuning\""},
      {"pagoda-tuning = 2\n", "line 1: pagoda-tuning is \"2\"; allowed: 1"},
      {"pagoda-tuning = 1\nbytes_per_us = 2e6\n", "line 2: the second key is \"bytes_per_us\"; allowed: \"device\""},
      {"pagoda-tuning = 1\ndevice = NVIDIA H200\n",
       "line 2: device is \"NVIDIA H200\"; allowed: \"any\" or this device, \"NVIDIA A100"},
      {good + "\nfrequency = 2\n", "line 4: there is no key \"frequency\""},
      {good + "merge2_us = 4\nmerge2_us = 4\n", "line 4: \"merge2_us\" is there twice"},
      {good + "merge2_us\n", "line 3: \"merge2_us\" is not \"key = value\""},
      {good + "merge2_us = \n", "line 3: merge2_us is \"\"; allowed: 0 to 1000"},
      {good + "merge2_us = 4 us\n", "line 3: merge2_us is \"4 us\"; allowed: 0 to 1000"},
      {good + "merge2_us = -0.5\n", "allowed: 0 to 1000"},
      {good + "merge2_us = 1e4\n", "allowed: 0 to 1000"},
      {good + "merge2_us = nan\n", "allowed: 0 to 1000"},
      {good + "bytes_per_us = inf\n", "allowed: 10000 to 1e+09"},
      {good + "bytes_per_us = 0\n", "allowed: 10000 to 1e+09"},
      {good + "stream_us = 5\nbytes_per_us = 1e400\n", "line 4: bytes_per_us is \"1e400\""},
      {good + std::string("\0\x1b[2J = 1\n", 9), "line 3: there is no key \"??[2J\""},
  };
  for (const auto& b : broken) {
    Speed speed;
    const std::string reason = parse_tuning(b.text, device, speed);
    std::string expected     = b.reason;
    if (const auto at = expected.find('\\'); at != expected.npos) expected.erase(at, 1);
    EXPECT_NE(reason.find(expected), std::string::npos) << reason << "\nlacks " << expected;
    EXPECT_EQ(speed, Speed{}) << reason;
  }
}

TEST(TuningFile, IsLookedForInTheUsersCache) {
  const Variable named("PAGODA_TUNING", nullptr), home("HOME", "/home/someone");
  {
    const Variable cache("XDG_CACHE_HOME", nullptr);
    EXPECT_EQ(tuning_path(device), "/home/someone/.cache/pagoda/tuning-NVIDIA-A100-SXM4-80GB.txt");
    EXPECT_EQ(tuning_path("../a b"), "/home/someone/.cache/pagoda/tuning----a-b.txt");
    const Variable no_home("HOME", nullptr);
    EXPECT_EQ(tuning_path(device), "");
  }
  const Variable cache("XDG_CACHE_HOME", "/cache");
  EXPECT_EQ(tuning_path(device), "/cache/pagoda/tuning-NVIDIA-A100-SXM4-80GB.txt");
  const Variable other("PAGODA_TUNING", "/etc/tuning.txt");
  EXPECT_EQ(tuning_path(device), "/etc/tuning.txt");
  const Variable off("PAGODA_TUNING", "");
  EXPECT_EQ(tuning_path(device), "");
}

TEST(TuningFile, FilesThatCannotBeUsedAreNamed) {
  const auto folder      = std::filesystem::path(testing::TempDir()) / "pagoda-tuning-test";
  const std::string path = (folder / "file.txt").string();
  std::filesystem::create_directories(folder);
  const Variable named("PAGODA_TUNING", path.c_str());
  const auto write = [&](const std::string& text) { std::ofstream(path, std::ios::binary) << text; };
  Speed speed;
  write(std::string(head) + "merge2_us = 8\n");
  EXPECT_EQ(read_tuning_file(device, speed), "");
  EXPECT_EQ(speed.merge2_us, 8);

  speed = {};
  write(std::string(head) + "merge2_us = many\n");
  EXPECT_EQ(read_tuning_file(device, speed), path + ", line 3: merge2_us is \"many\"; allowed: 0 to 1000");
  write(std::string(100000, '#'));
  EXPECT_EQ(read_tuning_file(device, speed), path + " has more than 65536 bytes");
  std::filesystem::remove(path);
  EXPECT_EQ(read_tuning_file(device, speed), path + ", which PAGODA_TUNING names, does not exist");
  {
    const Variable directory("PAGODA_TUNING", folder.c_str());
    EXPECT_EQ(read_tuning_file(device, speed), folder.string() + " is not a regular file");
    const Variable off("PAGODA_TUNING", "");
    EXPECT_EQ(read_tuning_file(device, speed), "");
  }
  const Variable nobody("PAGODA_TUNING", nullptr), cache("XDG_CACHE_HOME", folder.c_str());
  EXPECT_EQ(read_tuning_file(device, speed), "") << "no file is the usual case";
  EXPECT_EQ(speed, Speed{});
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace pagoda::tuned
