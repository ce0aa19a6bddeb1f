// SPDX-License-Identifier: Apache-2.0
#include "bench/common/harness.hpp"

#include "backends/host/isa.hpp"
#include "bench/common/machine.hpp"
#include "bench/stream/stream_read.hpp"

#include "pagoda_build_info.hpp"

#include <benchmark/benchmark.h>

#include <ctime>
#include <regex>
#include <stdexcept>
#include <string_view>
#include <utility>
#if defined(__unix__)
#include <unistd.h>
#endif

namespace pagoda::bench {

namespace {

constexpr const char* name_suffix = "/manual_time";  // Google Benchmark adds it to each name

bool stderr_is_terminal() {
#if defined(__unix__)
  return isatty(STDERR_FILENO) == 1;
#else
  return false;
#endif
}

/// The context of the figures.
Context describe_run() {
  using Exec                 = Kokkos::DefaultExecutionSpace;
  const auto machine         = describe_machine(Exec());
  const std::string_view git = build_info::git_hash;
  return {{"git", std::string(git)},
          {"git_dirty", git.ends_with("-dirty") ? "yes" : "no"},
          {"kokkos_version", build_info::kokkos_version},
          {"kokkos_devices", build_info::kokkos_devices},
          {"kokkos_arch", build_info::kokkos_arch},
          {"kokkos_options", build_info::kokkos_options},
          {"device", machine.device},
          {"execution_space", machine.execution_space},
          {"concurrency", std::to_string(machine.concurrency)},
          {"compiler", build_info::compiler},
          {"cxx_flags", build_info::cxx_flags},
          {"host_instructions", pagoda::detail::name_of(pagoda::detail::host_isa())},
          {"last_level_cache", std::to_string(StreamReader<Exec>::cache_bytes())},
          {"pages",
           "names end in tokens a page; ids are shuffled over the whole pool, and successive calls read other "
           "pages"},
          {"floor",
           "a bare read of the same number of bytes of the same memory, cold, in this process, at most 20 s before"}};
}

std::string now() {
  const std::time_t t = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&t, &utc);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S+00:00", &utc)};
}

}  // namespace

Harness::Harness(int& argc, char** argv) {
  constexpr std::string_view flag = "--resume";
  static char once[]              = "--benchmark_min_time=1e-9";  // one measurement by default
  std::vector<char*> args{argv, argv + (argc > 0 ? 1 : 0)};
  args.push_back(once);
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    if (arg == flag && i + 1 < argc) {
      journal_file_ = argv[++i];
    } else if (arg.starts_with(flag) && arg.substr(flag.size()).starts_with('=')) {
      journal_file_ = arg.substr(flag.size() + 1);
    } else {
      args.push_back(argv[i]);
    }
  }
  int count = static_cast<int>(args.size());
  args.push_back(nullptr);
  benchmark::Initialize(&count, args.data());
  for (argc = 0; argc < count; ++argc) argv[argc] = args[argc];  // at most as many as before
  for (int i = 1; i < argc; ++i)
    if (!std::string_view(argv[i]).starts_with("--kokkos")) rest_.emplace_back(argv[i]);
}

/// Chooses as Google Benchmark does.
int Harness::jobs_chosen() const {
  std::string filter  = benchmark::GetBenchmarkFilter();
  const bool negative = filter.starts_with('-');
  if (negative) filter.erase(0, 1);
  if (filter.empty() || filter == "all") filter = ".";
  const std::regex wanted(filter, std::regex::extended);
  int n = 0;
  for (const Job& job : todo_) n += std::regex_search(job.name + name_suffix, wanted) != negative;
  return n;
}

void Harness::announce(const std::string& name) {
  if (!journal_.is_on() && !stderr_is_terminal()) return;
  std::string left;
  if (begun_ > 0 && begun_ < chosen_) {
    const double seconds = clock_.seconds() / begun_ * (chosen_ - begun_);
    left                 = seconds < 90 ? std::to_string(static_cast<int>(seconds) + 1) + " s"
                                        : std::to_string(static_cast<int>(seconds / 60) + 1) + " min";
    left                 = ", about " + left + " left";
  }
  std::fprintf(stderr, "[%d of %d%s] %s\n", ++begun_, chosen_, left.c_str(), name.c_str());
}

int Harness::run() {
  if (!rest_.empty()) {
    std::fprintf(stderr, "unknown argument: %s\n", rest_.front().c_str());
    return 2;
  }
  Context context = describe_run();
  for (const auto& [key, value] : context) benchmark::AddCustomContext(key, value);
  if (!journal_file_.empty()) {
    context["date"] = now();
    journal_        = Journal(journal_file_, context);
    const auto done = [&](const Job& job) { return journal_.has(job.name + name_suffix); };
    const auto n    = std::erase_if(todo_, done);
    if (n > 0) std::fprintf(stderr, "%s: %zu benchmarks are in it already\n", journal_file_.c_str(), std::size_t(n));
  }
  chosen_ = jobs_chosen();
  for (const Job& job : todo_)
    benchmark::RegisterBenchmark(job.name.c_str(),
                                 [this, &job](benchmark::State& state) {
                                   announce(job.name);
                                   try {
                                     for ([[maybe_unused]] auto _ : state) {
                                       const Outcome r = job.measure();
                                       state.SetIterationTime(r.seconds);
                                       for (const auto& [key, value] : r.counters) state.counters[key] = value;
                                       state.SetLabel(r.label);
                                       if (!r.fault.empty()) {
                                         state.SkipWithError(r.fault.c_str());
                                         break;
                                       }
                                       journal_.add(job.name + name_suffix, r.seconds, r.counters, r.label);
                                     }
                                   } catch (const std::exception& error) {
                                     state.SkipWithError(error.what());
                                   }
                                 })
        ->UseManualTime()
        ->Unit(benchmark::kMicrosecond);
  if (!todo_.empty()) benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

}  // namespace pagoda::bench
