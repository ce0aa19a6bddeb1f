// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bench/common/journal.hpp"

#include <Kokkos_Core.hpp>

#include <cstdio>
#include <exception>
#include <functional>
#include <string>
#include <vector>

/// The common part of the benchmark executables: command line, context in the output, progress, and resuming an
/// interrupted run.
namespace pagoda::bench {

/// One measurement of one problem.
struct Outcome {
  double seconds = 0;
  Counters counters;
  std::string label;
  std::string fault;  ///< the error of the result; empty if it is right
};

/// Google Benchmark with one measurement for each name (a measurement takes its own samples), and with:
///
///   --resume FILE   writes each finished benchmark to FILE at once, and skips benchmarks that FILE has
///   progress        the current benchmark and the remaining time, on standard error, if that is a terminal or with
///                   --resume
class Harness {
 public:
  /// Removes its own arguments. The rest is for Google Benchmark, which it initializes, and for Kokkos.
  Harness(int& argc, char** argv);

  void add(const std::string& name, std::function<Outcome()> measure) { todo_.push_back({name, std::move(measure)}); }
  /// Runs the added benchmarks. Returns the exit code: 0, or 2 for unknown arguments.
  int run();

 private:
  struct Job {
    std::string name;
    std::function<Outcome()> measure;
  };
  int jobs_chosen() const;
  void announce(const std::string& name);

  std::vector<std::string> rest_;  ///< arguments that Google Benchmark left
  std::string journal_file_;
  Journal journal_;
  std::vector<Job> todo_;
  Kokkos::Timer clock_;
  int begun_ = 0, chosen_ = 0;
};

/// The main of a benchmark executable. list(harness) adds benchmarks and returns harness.run().
template <class List>
int main_of(const char* program, int argc, char** argv, const List& list) {
  try {
    Harness harness(argc, argv);
    const Kokkos::ScopeGuard kokkos(argc, argv);
    return list(harness);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", program, error.what());
    return 1;
  }
}

}  // namespace pagoda::bench
