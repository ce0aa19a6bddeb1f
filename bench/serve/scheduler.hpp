// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bench/serve/trace.hpp"

#include <cstdint>
#include <vector>

namespace pagoda::serve {

/// Capacity of a pool: pages and slots. A contiguous pool has one page of max_len tokens for each sequence.
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
  int final_length    = 0;  ///< tokens held with its last output token
};

/// Continuous batching, first come first served. A request is admitted when there is room, every step appends a token
/// to all sequences, and a sequence is released after its last token. All requests wait from the start (a saturated
/// server), and the trace repeats.
///
/// Room means pages for the final length of the sequence, which the trace contains. Nothing is evicted, and no request
/// overtakes another.
class Scheduler {
 public:
  /// Throws InvalidArgument if a request does not fit into an empty pool.
  Scheduler(const std::vector<Request>& requests, const Capacity& capacity);

  /// Admits all requests that fit and returns them, oldest first. Their length is the prompt's.
  std::vector<Live> admit();
  /// Lengthens every live sequence by one token.
  void grow();
  /// Removes the complete sequences and returns them, oldest first.
  std::vector<Live> retire();

  /// Oldest first.
  const std::vector<Live>& live() const { return live_; }
  const Request& request(std::int64_t number) const { return (*requests_)[number % requests_->size()]; }
  const Capacity& capacity() const { return capacity_; }
  std::int64_t admitted() const { return admitted_; }
  std::int64_t finished() const { return finished_; }
  std::int64_t promised_pages() const { return promised_; }
  /// Tokens held and tokens reserved (whole pages) by all live sequences.
  std::int64_t tokens_held() const;
  std::int64_t tokens_reserved() const;

 private:
  const std::vector<Request>* requests_;
  Capacity capacity_;
  std::vector<Live> live_;
  std::int64_t admitted_ = 0, finished_ = 0, promised_ = 0;
};

/// Statistics of `steps` steps of a scheduler.
struct Forecast {
  int peak_live              = 0;
  std::int64_t median_tokens = 0;  ///< held during a step
};
Forecast forecast(const std::vector<Request>& requests, const Capacity& capacity, int steps);

}  // namespace pagoda::serve
