// SPDX-License-Identifier: Apache-2.0
#include "bench/serve/trace.hpp"

#include <pagoda/error.hpp>

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <numeric>
#include <sstream>
#include <string>

namespace pagoda::serve {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

Trace read(const std::string& text) {
  std::istringstream in(text);
  return read_trace(in, "a.jsonl");
}

std::string error_of(const std::string& text) {
  try {
    read(text);
  } catch (const TraceError& error) {
    return error.what();
  }
  return "no error";
}

const std::string good = R"({"timestamp": 7, "input_length": 600, "output_length": 3, "hash_ids": [4, 9]})";

TEST(Trace, ReadsRequests) {
  const Trace t =
      read(good + "\n\n" + R"({"hash_ids":[5],"output_length":1,"timestamp":1.5,"input_length":512,"x":0})" + "\r\n");
  EXPECT_EQ(t.name, "a.jsonl");
  EXPECT_EQ(t.block_tokens, 512);
  ASSERT_EQ(t.requests.size(), 2u);
  EXPECT_EQ(t.requests[0].timestamp_ms, 1.5);  // in order of arrival
  EXPECT_EQ(t.requests[0].input_length, 512);
  EXPECT_EQ(t.requests[1].hash_ids, (std::vector<std::int64_t>{4, 9}));
  EXPECT_EQ(t.requests[1].total_length(), 603);
  EXPECT_EQ(t.longest(), 603);
}

TEST(Trace, ErrorsNameFileAndLine) {
  EXPECT_THAT(error_of(good + "\n{\"timestamp\": 0"), AllOf(StartsWith("a.jsonl:2: "), HasSubstr("JSON")));
  EXPECT_THAT(error_of("\n" + good + "\n[1]"), StartsWith("a.jsonl:3: is not a JSON object"));
  EXPECT_THAT(error_of(R"({"timestamp":0,"output_length":3,"hash_ids":[]})"),
              AllOf(StartsWith("a.jsonl:1: "), HasSubstr("\"input_length\"")));
}

TEST(Trace, ErrorsNameWhatIsAllowed) {
  const auto line = [](const char* timestamp, const char* input, const char* output, const char* ids) {
    return std::string(R"({"timestamp":)") + timestamp + R"(,"input_length":)" + input + R"(,"output_length":)" +
           output + R"(,"hash_ids":)" + ids + "}";
  };
  EXPECT_EQ(error_of(line("0", "1", "1", "[-1]")), "no error");
  EXPECT_THAT(error_of(line("\"now\"", "1", "1", "[1]")), HasSubstr("\"timestamp\" is \"now\"; allowed: numbers"));
  EXPECT_THAT(error_of(line("0", "0", "1", "[]")), HasSubstr("\"input_length\" is 0; allowed: whole numbers from 1"));
  EXPECT_THAT(error_of(line("0", "1", "2.5", "[1]")), HasSubstr("\"output_length\" is 2.5; allowed"));
  EXPECT_THAT(error_of(line("0", "1", "99999999999", "[1]")), HasSubstr("\"output_length\" is 99999999999; allowed"));
  EXPECT_THAT(error_of(line("0", "513", "1", "[1]")),
              HasSubstr("\"hash_ids\" has 1 ids; allowed: one for each block of 512"));
  EXPECT_THAT(error_of(line("0", "1", "1", "7")), HasSubstr("\"hash_ids\" is no array"));
  EXPECT_THAT(error_of(line("0", "1", "1", "[null]")), HasSubstr("\"hash_ids\" holds null; allowed: integers"));
}

TEST(Trace, RefusesWhatHoldsNothing) {
  EXPECT_EQ(error_of("\n \n"), "a.jsonl: holds no request");
  EXPECT_THROW(read_trace(std::string("no/such/file.jsonl")), TraceError);
}

TEST(Trace, ScalingKeepsEveryBlock) {
  const Trace whole = read_trace(std::string(PAGODA_TEST_TRACES "/toolagent_first33s.jsonl"));
  EXPECT_EQ(whole.requests.size(), 181u);
  EXPECT_EQ(whole.longest(), 87571);
  for (const int scale : {1, 2, 16, 512}) {
    const Trace small = scaled(whole, scale);
    EXPECT_EQ(small.block_tokens, 512 / scale);
    ASSERT_EQ(small.requests.size(), whole.requests.size());
    for (std::size_t i = 0; i < small.requests.size(); ++i) {
      const Request &a = whole.requests[i], &b = small.requests[i];
      EXPECT_EQ(b.input_length, (a.input_length + scale - 1) / scale);
      EXPECT_GE(b.output_length, 1);
      EXPECT_EQ(b.hash_ids, a.hash_ids);
      EXPECT_EQ((b.input_length + small.block_tokens - 1) / small.block_tokens, static_cast<int>(b.hash_ids.size()));
    }
  }
  for (const int scale : {-1, 0, 3, 1024}) EXPECT_THROW(scaled(whole, scale), InvalidArgument) << scale;
}

}  // namespace
}  // namespace pagoda::serve
