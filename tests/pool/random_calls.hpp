// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/pool/failing_launches.hpp"
#include "tests/support/failing_allocations.hpp"

#include <pagoda/kv_pool.hpp>

#include <gtest/gtest.h>

#include <exception>
#include <optional>

namespace pagoda::test {

/// Options of a pool of any shape that is small enough to compare everything.
template <class Random>
PoolOptions draw_pool_options(Random& random) {
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const auto from  = [&](int least, int most) { return least + below(most - least + 1); };
  const auto dims  = [&] { return below(3) == 0 ? 16 * from(1, 5) : from(1, 20); };
  PoolOptions o;
  o.num_kv_heads  = from(1, 3);
  o.head_dim      = dims();
  o.head_dim_v    = below(2) == 0 ? 0 : dims();
  o.max_seq_len   = from(1, 90);
  o.max_sequences = from(1, 9);
  o.page_size     = below(2) == 0 ? 1 << below(6) : from(1, 40);
  o.order         = below(2) == 0 ? KVOrder::NHD : KVOrder::HND;
  const int each  = (o.max_seq_len + o.page_size - 1) / o.page_size;
  o.num_pages     = below(4) == 0 ? 0 : from(each, each * o.max_sequences);
  return o;
}

/// Calls in some of which an allocation or a launch fails.
struct Attempts {
  long calls = 0, refused = 0, failed = 0;

  struct Result {
    bool thrown = false, injected = false;
  };

  /// Makes a call. Error: the exception if it does not fit.
  template <class Error, class Random, class Call>
  Result make(Random& random, const char* name, bool fits, const Call& call) {
    const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    ++calls;
    enum { nothing, allocation, launch } failing = below(4) > 0 ? nothing : below(2) == 0 ? allocation : launch;
    const int n                                  = below(failing == launch ? 3 : 6);
    const bool lasting                           = below(2) == 0;
    bool wrong_error                             = false;
    Result result;
    {
      std::optional<FailingAllocations> allocations;
      std::optional<FailingLaunches> launches;
      if (failing == launch) launches.emplace(n);
      if (failing == allocation) allocations.emplace(n, lasting);
      try {
        call();
      } catch (const Error&) {
        result.thrown = true;
        wrong_error   = fits;
      } catch (const std::exception&) {
        result.thrown = wrong_error = true;
      }
      if (failing == allocation) result.injected = FailingAllocations::count() > n;
      if (failing == launch) result.injected = FailingLaunches::count() > n;
    }
    refused += !fits;
    failed += result.injected;
    EXPECT_EQ(result.thrown, result.injected || !fits) << name;
    EXPECT_TRUE(result.injected || !wrong_error) << name << " threw something else";
    return result;
  }
};

}  // namespace pagoda::test
