// SPDX-License-Identifier: Apache-2.0
#include "bench/study/cases.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace pagoda::bench::study {
namespace {

std::set<std::string> names(const std::vector<StudyCase>& cases) {
  std::set<std::string> all;
  for (const StudyCase& c : cases) EXPECT_TRUE(all.insert(c.name()).second) << c.name();
  return all;
}

TEST(StudyCases, HoldWhatTheStudyMeasured) {
  const auto all = names(device_cases(true));
  for (int tokens = 4096; tokens <= 2097152; tokens *= 2) {
    const std::string length = "/T" + std::to_string(tokens);
    for (const char* what : {"K1/flash", "K1/three-kernels", "K1/cpu-reference", "K1/flash-end-to-end",
                             "K1/three-kernels-end-to-end", "K2/splits16", "K2/splits128", "K2/splits1024",
                             "K1/cuda-flash", "K1/cuda-three-kernels", "K2/cuda-splits16", "K2/cuda-splits1024"})
      EXPECT_EQ(all.count("study/" + std::string(what) + length), 1u) << what << length;
  }
  for (const char* name :
       {"study/K3/contiguous/max512/4GiB", "study/K3/paged/max8192/4GiB", "study/K4/serial-copy/T512/page16",
        "study/K4/serial/T512/page1", "study/K4/batched/T2048/page512", "study/K4/serial/T2048/contiguous",
        "study/K4/batched/T512/contiguous"})
    EXPECT_EQ(all.count(name), 1u) << name;
  EXPECT_EQ(all.count("study/K4/serial-copy/T512/contiguous"), 0u);  // there is no table to copy
}

TEST(StudyCases, OtherGpusHaveAllButTheCudaOnes) {
  auto with = names(device_cases(true));
  std::erase_if(with, [](const std::string& name) { return name.find("cuda-") != std::string::npos; });
  EXPECT_EQ(with, names(device_cases(false)));
}

TEST(StudyCases, TheHostsAreFewerOfTheSameKind) {
  EXPECT_LT(names(host_cases()).size(), names(device_cases(false)).size());
  std::set<Work> works;
  for (const StudyCase& c : host_cases()) works.insert(c.work);
  EXPECT_EQ(works.size(), 10u);
}

TEST(StudyCases, CutEvenly) {
  for (const auto& cases : {device_cases(true), host_cases()})
    for (const StudyCase& c : cases)
      if (c.splits > 0) {
        EXPECT_EQ(c.tokens % c.splits, 0) << c.name();
      }
}

TEST(StudyCases, ReadAsManyBytesAsTheStudy) {
  EXPECT_EQ(problem(1, 2097152, 0).bytes(), std::size_t(1) << 31);
  EXPECT_EQ(problem(num_sequences, 512, 16).bytes(), 64u * 512 * 128 * 2 * 4);
}

}  // namespace
}  // namespace pagoda::bench::study
