// SPDX-License-Identifier: Apache-2.0
#include "bench/serve/progress.hpp"

#include "bench/serve/text.hpp"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <utility>
#if defined(__unix__)
#include <unistd.h>
#endif

namespace pagoda::serve {

namespace {

bool is_terminal() {
#if defined(__unix__)
  return isatty(STDERR_FILENO) != 0;
#else
  return false;
#endif
}

}  // namespace

Progress::Progress(std::string what, std::int64_t total, std::string unit)
    : what_(std::move(what)),
      unit_(std::move(unit)),
      total_(std::max<std::int64_t>(total, 1)),
      terminal_(is_terminal()),
      exceptions_(std::uncaught_exceptions()),
      begin_(Clock::now()),
      shown_(begin_) {
  if (terminal_) show(false);
}

Progress::~Progress() {
  if (std::uncaught_exceptions() == exceptions_)
    show(true);
  else if (terminal_)
    std::fputc('\n', stderr);
}

void Progress::add(std::int64_t done) {
  done_ += done;
  const auto pause = terminal_ ? std::chrono::milliseconds(100) : std::chrono::seconds(10);
  if (Clock::now() - shown_ >= pause) show(false);
}

void Progress::show(bool last) {
  shown_            = Clock::now();
  const double s    = std::chrono::duration<double>(shown_ - begin_).count();
  const auto counts = grouped(done_) + (last ? "" : " of " + grouped(total_)) + " " + unit_;
  if (terminal_) {
    constexpr int width = 24;
    const int full      = static_cast<int>(width * std::min(done_, total_) / total_);
    std::fprintf(stderr, "\r%-28s [%s%s] %s, %.1f s\x1b[K%s", what_.c_str(), std::string(full, '#').c_str(),
                 std::string(width - full, '.').c_str(), counts.c_str(), s, last ? "\n" : "");
  } else {
    std::fprintf(stderr, "%-28s %s, %.1f s\n", what_.c_str(), counts.c_str(), s);
  }
  std::fflush(stderr);
}

}  // namespace pagoda::serve
