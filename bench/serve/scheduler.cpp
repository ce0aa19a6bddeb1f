// SPDX-License-Identifier: Apache-2.0
#include "bench/serve/scheduler.hpp"

#include <pagoda/error.hpp>

#include <algorithm>
#include <iterator>

namespace pagoda::serve {

Scheduler::Scheduler(const std::vector<Request>& requests, const Capacity& capacity)
    : requests_(&requests), capacity_(capacity) {
  detail::require(!requests.empty(), "the trace holds no request");
  detail::require(capacity.max_sequences >= 1 && capacity.page_size >= 1, "the pool has room for ",
                  capacity.max_sequences, " sequences, in pages of ", capacity.page_size,
                  " tokens; allowed: 1 or more of both");
  for (const Request& r : requests)
    detail::require(capacity.pages_for(r.total_length()) <= capacity.pages, "a request of ", r.total_length(),
                    " tokens does not fit the pool's ", capacity.pages, " pages of ", capacity.page_size, " tokens");
}

std::vector<Live> Scheduler::admit() {
  const std::size_t before = live_.size();
  while (static_cast<int>(live_.size()) < capacity_.max_sequences) {
    const Request& next      = request(admitted_);
    const std::int64_t pages = capacity_.pages_for(next.total_length());
    if (promised_ + pages > capacity_.pages) break;
    promised_ += pages;
    live_.push_back({admitted_++, next.input_length, next.total_length()});
  }
  return {live_.begin() + before, live_.end()};
}

void Scheduler::grow() {
  for (Live& s : live_) ++s.length;
}

std::vector<Live> Scheduler::retire() {
  const auto complete = [](const Live& s) { return s.length >= s.final_length; };
  std::vector<Live> done;
  std::copy_if(live_.begin(), live_.end(), std::back_inserter(done), complete);
  std::erase_if(live_, complete);
  for (const Live& s : done) promised_ -= capacity_.pages_for(s.final_length);
  finished_ += static_cast<std::int64_t>(done.size());
  return done;
}

std::int64_t Scheduler::tokens_held() const {
  std::int64_t sum = 0;
  for (const Live& s : live_) sum += s.length;
  return sum;
}

std::int64_t Scheduler::tokens_reserved() const {
  std::int64_t pages = 0;
  for (const Live& s : live_) pages += capacity_.pages_for(s.length);
  return pages * capacity_.page_size;
}

Forecast forecast(const std::vector<Request>& requests, const Capacity& capacity, int steps) {
  Scheduler scheduler(requests, capacity);
  Forecast f;
  std::vector<std::int64_t> tokens;
  for (int i = 0; i < steps; ++i) {
    scheduler.admit();
    scheduler.grow();
    f.peak_live = std::max(f.peak_live, static_cast<int>(scheduler.live().size()));
    tokens.push_back(scheduler.tokens_held());
    scheduler.retire();
  }
  if (tokens.empty()) return f;
  std::nth_element(tokens.begin(), tokens.begin() + tokens.size() / 2, tokens.end());
  f.median_tokens = tokens[tokens.size() / 2];
  return f;
}

}  // namespace pagoda::serve
