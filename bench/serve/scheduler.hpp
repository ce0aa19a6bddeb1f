// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bench/serve/trace.hpp"

#include <cstdint>
#include <vector>

namespace pagoda::serve {

/// What a pool holds: pages and places for sequences. A contiguous pool is the case of one page of max_len tokens for
/// each sequence.
struct Capacity {
  int max_sequences  = 0;
  std::int64_t pages = 0;
  int page_size      = 1;

  std::int64_t pages_for(std::int64_t tokens) const { return (tokens + page_size - 1) / page_size; }
};

/// A sequence in the pool.
struct Live {
  std::int64_t number = 0;  ///< how many requests came before it; request number % trace size
  int length          = 0;  ///< tokens held
  int final_length    = 0;  ///< tokens held when its last output token is
};

/// Continuous batching, first come first served: whenever there is room the next request comes in, every step lengthens
/// all sequences by a token, a sequence leaves after its last one. All requests wait from the start (a saturated
/// server), and after its last request the trace begins anew.
///
/// Room means pages for all that the sequence will ever hold, which the trace tells: nothing is evicted or refused
/// half-way, and no request overtakes another.
class Scheduler {
 public:
  /// Throws InvalidArgument where some request does not fit an empty pool.
  Scheduler(const std::vector<Request>& requests, const Capacity& capacity);

  /// Takes in all requests there is room for and returns them, oldest first; their length is the prompt's.
  std::vector<Live> admit();
  /// Every live sequence is one token longer.
  void grow();
  /// Takes out the sequences that are complete and returns them, oldest first.
  std::vector<Live> retire();

  /// Oldest first.
  const std::vector<Live>& live() const { return live_; }
  const Request& request(std::int64_t number) const { return (*requests_)[number % requests_->size()]; }
  const Capacity& capacity() const { return capacity_; }
  std::int64_t admitted() const { return admitted_; }
  std::int64_t finished() const { return finished_; }
  std::int64_t promised_pages() const { return promised_; }
  /// Tokens held, and tokens' worth of pages taken, by all live sequences.
  std::int64_t tokens_held() const;
  std::int64_t tokens_reserved() const;

 private:
  const std::vector<Request>* requests_;
  Capacity capacity_;
  std::vector<Live> live_;
  std::int64_t admitted_ = 0, finished_ = 0, promised_ = 0;
};

/// What `steps` steps of a scheduler come to.
struct Forecast {
  int peak_live              = 0;
  std::int64_t median_tokens = 0;  ///< held during a step
};
Forecast forecast(const std::vector<Request>& requests, const Capacity& capacity, int steps);

}  // namespace pagoda::serve
