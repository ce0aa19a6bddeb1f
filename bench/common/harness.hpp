// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bench/common/journal.hpp"

#include <Kokkos_Core.hpp>

#include <cstdio>
#include <exception>
#include <functional>
#include <string>
#include <vector>

/// What the benchmark executables have in common: their command line, the context in their output, progress, and going
/// on where an earlier run was stopped.
namespace pagoda::bench {

/// One measurement of one problem.
struct Outcome {
  double seconds = 0;
  Counters counters;
  std::string label;
  std::string fault;  ///< what is wrong with the result; empty if nothing is
};

/// Google Benchmark, with one measurement for each name (a measurement takes its own samples) and two things more:
///
///   --resume FILE   every finished benchmark is at once a line of FILE, and is left out if FILE has it already
///   progress        which benchmark has begun and how long the rest will take, on standard error, where that is a
///                   terminal or --resume is given
class Harness {
 public:
  /// Takes its own arguments out; what is left is for Google Benchmark, which is initialised, and for Kokkos.
  Harness(int& argc, char** argv);

  void add(const std::string& name, std::function<Outcome()> measure) { todo_.push_back({name, std::move(measure)}); }
  /// Runs what was added. The exit code: 0, or 2 for arguments that nobody knows.
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
