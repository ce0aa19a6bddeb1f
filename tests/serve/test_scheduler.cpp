// SPDX-License-Identifier: Apache-2.0
#include "bench/serve/scheduler.hpp"

#include <pagoda/error.hpp>

#include <gtest/gtest.h>

#include <limits>
#include <random>

namespace pagoda::serve {
namespace {

Request request(int input, int output) { return {0, input, output, {}}; }

std::vector<Request> random_requests(int count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<Request> all(count);
  for (Request& r : all) r = request(1 + static_cast<int>(random() % 300), 1 + static_cast<int>(random() % 20));
  return all;
}

TEST(Scheduler, NeverPromisesMoreThanThereIs) {
  for (const int page_size : {1, 16, 320}) {
    const auto requests = random_requests(50, 7);
    const Capacity capacity{9, 20 * 320 / page_size, page_size};
    Scheduler s(requests, capacity);
    for (int step = 0; step < 300; ++step) {
      s.admit();
      s.grow();
      std::int64_t pages = 0;
      for (const Live& one : s.live()) {
        EXPECT_LE(one.length, one.final_length);
        pages += capacity.pages_for(one.final_length);
      }
      EXPECT_EQ(pages, s.promised_pages());
      EXPECT_LE(pages, capacity.pages);
      EXPECT_LE(s.live().size(), 9u);
      EXPECT_LE(s.tokens_held(), s.tokens_reserved());
      EXPECT_LE(s.tokens_reserved(), capacity.pages * page_size);
      s.retire();
    }
    EXPECT_GT(s.finished(), 50);
  }
}

TEST(Scheduler, FirstComeFirstServed) {
  const auto requests = random_requests(20, 3);
  Scheduler s(requests, {5, 100, 16});
  std::int64_t next = 0;
  for (int step = 0; step < 200; ++step) {
    for (const Live& one : s.admit()) {
      EXPECT_EQ(one.number, next);  // the trace repeats
      EXPECT_EQ(one.length, requests[next % 20].input_length);
      EXPECT_EQ(one.final_length, requests[next % 20].total_length());
      ++next;
    }
    s.grow();
    s.retire();
  }
  EXPECT_GT(next, 20);
}

TEST(Scheduler, ALongRequestIsNotOvertaken) {
  const std::vector<Request> requests{request(50, 2), request(90, 10), request(1, 1)};
  Scheduler s(requests, {10, 100, 1});
  EXPECT_EQ(s.admit().size(), 1u);
  EXPECT_EQ(s.admit().size(), 0u);  // 90 + 10 does not fit beside the first, and the third waits behind it
  s.grow();
  EXPECT_EQ(s.retire().size(), 0u);
  s.grow();
  EXPECT_EQ(s.retire().size(), 1u);
  EXPECT_EQ(s.admit().size(), 1u);
  EXPECT_EQ(s.live()[0].number, 1);
}

TEST(Scheduler, CountsAreConserved) {
  const auto requests = random_requests(30, 5);
  Scheduler s(requests, {8, 90, 16});
  std::int64_t admitted = 0, finished = 0;
  for (int step = 0; step < 200; ++step) {
    admitted += static_cast<std::int64_t>(s.admit().size());
    s.grow();
    const auto done = s.retire();
    for (const Live& one : done) EXPECT_EQ(one.length, requests[one.number % 30].total_length());
    finished += static_cast<std::int64_t>(done.size());
    EXPECT_EQ(s.admitted(), admitted);
    EXPECT_EQ(s.finished(), finished);
    EXPECT_EQ(admitted - finished, static_cast<std::int64_t>(s.live().size()));
  }
}

TEST(Scheduler, GeneratesAsManyTokensAsAsked) {
  const std::vector<Request> requests{request(5, 3)};
  Scheduler s(requests, {1, 1, 8});
  s.admit();
  for (int token = 1; token <= 3; ++token) {
    s.grow();
    EXPECT_EQ(s.tokens_held(), 5 + token);
    EXPECT_EQ(s.tokens_reserved(), 8);
    EXPECT_EQ(s.retire().size(), token == 3 ? 1u : 0u);
  }
}

TEST(Scheduler, RefusesWhatNeverFits) {
  const std::vector<Request> requests{request(5, 3)};
  EXPECT_THROW(Scheduler(requests, {1, 7, 1}), InvalidArgument);
  EXPECT_THROW(Scheduler(requests, {0, 8, 1}), InvalidArgument);
  EXPECT_THROW(Scheduler({}, {1, 8, 1}), InvalidArgument);
}

TEST(Scheduler, ForecastIsWhatHappens) {
  const auto requests = random_requests(40, 11);
  const Capacity capacity{std::numeric_limits<int>::max(), 200, 16};
  const Forecast f = forecast(requests, capacity, 100);
  Scheduler s(requests, {f.peak_live, 200, 16});  // exactly the forecast number of slots changes nothing
  int peak = 0, above = 0, below = 0;
  for (int step = 0; step < 100; ++step) {
    s.admit();
    s.grow();
    peak = std::max(peak, static_cast<int>(s.live().size()));
    above += s.tokens_held() > f.median_tokens ? 1 : 0;
    below += s.tokens_held() < f.median_tokens ? 1 : 0;
    s.retire();
  }
  EXPECT_EQ(peak, f.peak_live);
  EXPECT_LE(above, 50);
  EXPECT_LE(below, 50);
}

}  // namespace
}  // namespace pagoda::serve
