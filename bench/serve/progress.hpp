// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace pagoda::serve {

/// How far a piece of work has come, on standard error: a bar on a terminal, elsewhere a line when it begins, one every
/// ten seconds, and one at its end.
class Progress {
 public:
  /// unit: what is counted, "tokens".
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
