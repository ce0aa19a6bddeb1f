// SPDX-License-Identifier: Apache-2.0
#include "bench/stream/stream_read.hpp"

#include <Kokkos_Core.hpp>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace {

using Exec = Kokkos::DefaultExecutionSpace;

/// The longest read in MB; empty if the arguments are wrong.
std::optional<double> longest_read(const std::vector<std::string>& args) {
  if (args.empty()) return std::is_same_v<Exec::memory_space, Kokkos::HostSpace> ? 1074 : 4296;
  char* end       = nullptr;
  const double mb = std::strtod(args[0].c_str(), &end);
  if (args.size() > 1 || *end != '\0' || !(mb >= 1)) return std::nullopt;
  return mb;
}

void print_table(double longest_mb) {
  const Exec exec;
  const auto longest = static_cast<std::size_t>(longest_mb * 1e6);
  pagoda::bench::StreamReader<Exec> reader(exec, longest);
  std::printf("cold reads on %s\n\n%10s %12s %9s  %s\n", Exec::name(), "MB", "us", "GB/s", "fastest");
  for (std::size_t bytes = std::size_t(1) << 19; bytes <= longest; bytes *= 2) {
    const auto r = reader.read(bytes);
    std::printf("%10.1f %12.1f %9.1f  %s\n", static_cast<double>(r.bytes) * 1e-6, r.seconds * 1e6, r.gb_per_s(),
                r.shape.c_str());
    std::fflush(stdout);
  }
}

}  // namespace

/// pagoda-stream [MB]: measures how fast this machine reads memory, the lower limit of every decode's time.
int main(int argc, char** argv) {
  std::vector<std::string> args;
  for (int i = 1; i < argc; ++i)
    if (!std::string_view(argv[i]).starts_with("--kokkos")) args.emplace_back(argv[i]);
  const auto longest_mb = longest_read(args);
  if (!longest_mb) {
    std::fprintf(
        stderr,
        "usage: pagoda-stream [MB]\nTimes bare reads of 0.5, 1, 2, 4 ... MB of memory, up to MB (1 or more).\n");
    return args[0] == "--help" ? EXIT_SUCCESS : 2;
  }
  const Kokkos::ScopeGuard kokkos(argc, argv);
  try {
    print_table(*longest_mb);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "pagoda-stream: %s\n", error.what());
    return 1;
  }
  return EXIT_SUCCESS;
}
