// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace pagoda::serve {

/// Progress of a piece of work on standard error: a bar on a terminal; elsewhere a line at the start, every ten seconds
/// and at the end.
class Progress {
 public:
  /// unit: the name of what is counted, such as "tokens".
  Progress(std::string what, std::int64_t total, std::string unit);
  ~Progress();
  Progress(const Progress&)            = delete;
  Progress& operator=(const Progress&) = delete;

  void add(std::int64_t done);

 private:
  using Clock = std::chrono::steady_clock;
  void show(bool last);

  std::string what_, unit_;
  std::int64_t total_, done_ = 0;
  bool terminal_;
  int exceptions_;
  Clock::time_point begin_, shown_;
};

}  // namespace pagoda::serve
