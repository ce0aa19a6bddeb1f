// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

#include <unistd.h>
#include <csignal>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <random>
#include <string>
#include <utility>
#include <vector>

/// The common part of drivers of random problems: the command line, the loop over seeds, and what is printed when a
/// problem fails, crashes or hangs.
namespace pagoda::test::random {

/// Runs problems, one for each seed from --seed on, until --seconds or --count is reached.
class Driver {
 public:
  /// name: of the executable. description: for --help.
  Driver(std::string name, const std::string& description) : name_(std::move(name)), app_(description, name_) {
    app_.add_option("--seed", seed_, "seed of the first problem; the next ones follow (default: a random one)");
    app_.add_option("--seconds", seconds_, "start no problem after this time; 0: no limit")->capture_default_str();
    app_.add_option("--count", count_, "number of problems; 0: no limit")->capture_default_str();
    app_.add_option("--max-failures", max_failures_, "stop after this number of failures")->capture_default_str();
    app_.add_option("--hang-seconds", hang_seconds_, "abort a problem that takes longer; 0: never")
        ->capture_default_str();
    app_.add_flag("--verbose", verbose_, "print each problem before it runs");
  }

  /// For options of the driver's own.
  CLI::App& app() { return app_; }
  bool verbose() const { return verbose_; }

  /// Reads the command line. Returns false, and sets the exit code, if the program must end: after --help, or on a
  /// wrong option.
  bool parse(int argc, char** argv, int& exit_code) {
    try {
      app_.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      exit_code = app_.exit(error) == 0 ? 0 : unusable;
      return false;
    }
    if (app_.count("--seed") == 0) seed_ = std::random_device{}();
    return true;
  }

  /// problem(seed): runs a problem and returns the error, or an empty string. options(seed): the driver's options that
  /// reproduce the problem of this seed, for the replay command. Returns the exit code.
  int run(const std::function<std::string(std::uint64_t)>& problem,
          const std::function<std::string(std::uint64_t)>& options) {
    using Clock = std::chrono::steady_clock;
    watch();
    const auto start   = Clock::now();
    const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
    std::int64_t done = 0, failed = 0;
    for (; (count_ == 0 || done < count_) && (seconds_ == 0 || elapsed() < seconds_) && failed < max_failures_;
         ++done) {
      const std::uint64_t seed = seed_ + static_cast<std::uint64_t>(done);
      const std::string replay = name_ + " --seed " + std::to_string(seed) + " --count 1 --seconds 0 " + options(seed);
      begin(seed, replay);
      const std::string failure = problem(seed);
      if (failure.empty()) continue;
      ++failed;
      std::printf("FAILED: seed %llu\n%s\nReplay: %s\n\n", static_cast<unsigned long long>(seed), failure.c_str(),
                  replay.c_str());
      std::fflush(stdout);
    }
    alarm(0);
    std::printf("%s: %lld problems in %.1f s, from seed %llu on: %lld failed\n", name_.c_str(),
                static_cast<long long>(done), elapsed(), static_cast<unsigned long long>(seed_),
                static_cast<long long>(failed));
    return failed > 0 ? wrong : 0;
  }

 private:
  static constexpr int wrong = 1, unusable = 2;  // exit codes

  /// A crash or a hang ends the process, so the handler's text is prepared before each problem.
  void begin(std::uint64_t seed, const std::string& replay) {
    std::snprintf(crash_text().data(), crash_text().size(), "\nCRASHED or hung: seed %llu\nReplay: %s\n",
                  static_cast<unsigned long long>(seed), replay.c_str());
    alarm(static_cast<unsigned>(hang_seconds_));
  }
  static std::array<char, 2048>& crash_text() {
    static std::array<char, 2048> text{};
    return text;
  }
  static std::array<struct sigaction, 32>& before() {
    static std::array<struct sigaction, 32> handlers{};
    return handlers;
  }
  static void report_crash(int signal) {
    [[maybe_unused]] const auto written = write(STDOUT_FILENO, crash_text().data(), std::strlen(crash_text().data()));
    sigaction(signal, &before()[static_cast<std::size_t>(signal)], nullptr);  // a sanitizer's own, or the default
    if (signal == SIGALRM) {
      sigaction(SIGABRT, &before()[SIGABRT], nullptr);
      std::abort();
    }
    if (signal == SIGTERM) raise(signal);
  }
  static void watch() {
    for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGALRM, SIGTERM}) {
      struct sigaction action{};
      action.sa_handler = report_crash;
      sigaction(signal, &action, &before()[static_cast<std::size_t>(signal)]);
    }
  }

  std::string name_;
  CLI::App app_;
  std::uint64_t seed_ = 1;
  double seconds_     = 60;
  std::int64_t count_ = 0;
  int max_failures_   = 5;
  int hang_seconds_   = 120;
  bool verbose_       = false;
};

/// Random numbers that are the same on every platform.
class Random {
 public:
  /// stream: numbers drawn for one purpose do not depend on how many are drawn for another.
  Random(std::uint64_t seed, std::uint64_t stream) {
    std::seed_seq both{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32),
                       static_cast<std::uint32_t>(stream)};
    bits_ = [engine = std::mt19937_64(both)]() mutable { return engine(); };
  }
  /// Numbers that a caller chooses. bits: returns 64 bits.
  explicit Random(std::function<std::uint64_t()> bits) : bits_(std::move(bits)) {}
  std::uint64_t bits() { return bits_(); }
  /// From [0, 1).
  double real() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  /// From least to most, both included.
  int integer(int least, int most) {
    const auto count = static_cast<std::uint64_t>(std::int64_t(most) - least + 1);
    return static_cast<int>(least + static_cast<std::int64_t>(bits() % count));
  }
  /// The same, with all powers of two equally likely. least: 1 or more; most: below 2^30.
  int log_integer(int least, int most) {
    const int low = least << integer(0, std::bit_width(static_cast<unsigned>(most / least)) - 1);
    return integer(low, std::min(most, 2 * low - 1));
  }
  bool chance(double probability) { return real() < probability; }
  template <class T>
  T pick(std::initializer_list<T> choices) {
    return choices.begin()[integer(0, static_cast<int>(choices.size()) - 1)];
  }
  template <class T>
  const T& pick(const std::vector<T>& choices) {
    return choices[static_cast<std::size_t>(integer(0, static_cast<int>(choices.size()) - 1))];
  }

 private:
  std::function<std::uint64_t()> bits_;
};

}  // namespace pagoda::test::random
