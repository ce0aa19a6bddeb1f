// SPDX-License-Identifier: Apache-2.0
#include "bench/decode/arena.hpp"
#include "bench/decode/caches.hpp"
#include "bench/decode/cases.hpp"
#include "bench/decode/timing.hpp"
#include "bench/decode/verify.hpp"
#if defined(PAGODA_BENCH_ON_HOST)
#include "bench/decode/fma_peak.hpp"
#endif
#include "bench/serve/machine.hpp"
#include "src/dispatch/by_type.hpp"

#include <pagoda/decode.hpp>
#include <pagoda/error.hpp>
#include <pagoda/plan.hpp>

#include "pagoda_build_info.hpp"

#include <benchmark/benchmark.h>
#include <Kokkos_Core.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace pagoda::bench {

namespace {

using Exec                = Kokkos::DefaultExecutionSpace;
using Memory              = Exec::memory_space;
constexpr bool on_host    = std::is_same_v<Memory, Kokkos::HostSpace>;
constexpr auto query_from = std::uint64_t(1) << 60;  // elements of the arena that no cache reaches

/// What the benchmarks of one process share.
struct Session {
  Exec exec;
  Floors<Exec> floors{exec};
  Arena<Exec> arena{exec};
  double fmas_per_second = 0;  ///< 0: not known, and not what bounds a GPU
};

Plan<Exec> make_plan(const Exec& exec, const Case& c, const auto& caches) {
  return caches.with(
      0, [&](const auto& kv) { return plan(exec, kv, {.num_q_heads = c.num_q_heads, .max_seq_len = c.longest()}); });
}

/// The backend that would run it; "none" if it cannot be planned, which running it then explains.
std::string backend_of(const Exec& exec, const Case& c) {
  try {
    std::string name;
    pagoda::detail::by_type(
        c.type, [&]<class T>(T*) { name = make_plan(exec, c, Caches<Exec, T>(exec, c, nullptr, 1)).backend(); });
    return name;
  } catch (const InvalidArgument&) {
    return "none";
  }
}

struct Result {
  Rotation rotation;
  double seconds = 0;
  Reading floor;
  std::string fault;
  int rows_checked = 0;
};

template <class T>
Result measure(Session& session, const Case& c) {
  const Exec& exec = session.exec;
  Result r;
  StreamReader<Exec>& reader = session.floors.reader();  // before the arena: it takes what is left
  const std::size_t bytes    = Caches<Exec, T>::elements(c, 1) * sizeof(T);
  r.rotation                 = rotation(bytes, reader.cache_bytes(), session.arena.limit());
  pagoda::detail::require(r.rotation.caches > 0, "one cache takes ", static_cast<double>(bytes) * 1e-9,
                          " GB; there are ", static_cast<double>(session.arena.limit()) * 1e-9);
  const T* const memory = session.arena.get<T>(Caches<Exec, T>::elements(c, r.rotation.caches));
  const Caches<Exec, T> caches(exec, c, memory, r.rotation.caches);

  using Number = std::conditional_t<is_quantized_v<T>, half_t, T>;
  using Rows   = Kokkos::View<Number***, Kokkos::LayoutRight, Memory>;
  const Rows q("Pagoda::bench::q", c.batch(), c.num_q_heads, c.head_dim);
  const Rows out("Pagoda::bench::out", c.batch(), c.num_q_heads, c.head_dim_v);
  fill(exec, q, query_from);
  const auto plan   = make_plan(exec, c, caches);
  const auto decode = [&](int i) { caches.with(i, [&](const auto& kv) { pagoda::decode(exec, plan, q, kv, out); }); };

  r.floor   = session.floors.of(c.bytes(), r.rotation.calls);
  r.seconds = seconds_of_call(exec, r.rotation, reader, decode);

  Kokkos::deep_copy(exec, out, Number(std::numeric_limits<float>::quiet_NaN()));
  decode(0);
  exec.fence("Pagoda::bench::checked_decode");
  r.fault = find_fault(c, caches, Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), q),
                       Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), out), r.rows_checked);
  return r;
}

void report(benchmark::State& state, const Session& session, const Case& c, const Result& r) {
  const double us = r.seconds * 1e6, floor_us = r.floor.seconds * 1e6, bytes = static_cast<double>(c.bytes());
  auto& counters           = state.counters;
  counters["bytes"]        = bytes;
  counters["us"]           = us;
  counters["floor_us"]     = floor_us;
  counters["ratio"]        = us / floor_us;
  counters["over_us"]      = us - floor_us;
  counters["gb_per_s"]     = bytes / r.seconds * 1e-9;
  counters["pct_of_read"]  = 100 * floor_us / us;
  counters["caches"]       = r.rotation.caches;
  counters["rows_checked"] = r.rows_checked;
  if (const auto bar = bar_us(c.bar, floor_us); bar && !on_host) counters["bar_us"] = *bar;
  if (session.fmas_per_second > 0) {
    const double limit_us    = std::max(floor_us, c.fmas() / session.fmas_per_second * 1e6);
    counters["limit_us"]     = limit_us;
    counters["pct_of_limit"] = 100 * limit_us / us;
  }
  state.SetLabel("floor: " + r.floor.shape);
}

/// One iteration is a whole measurement: many calls, timed as Floors and seconds_of_call say.
void run(benchmark::State& state, Session& session, const Case& c) {
  try {
    for ([[maybe_unused]] auto _ : state) {
      Result r;
      pagoda::detail::by_type(c.type, [&]<class T>(T*) { r = measure<T>(session, c); });
      state.SetIterationTime(r.seconds);
      report(state, session, c, r);
      if (!r.fault.empty()) {
        state.SkipWithError(r.fault.c_str());
        break;
      }
    }
    state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * c.bytes()));
  } catch (const std::exception& error) {
    state.SkipWithError(error.what());
  }
}

void add_context(const Exec& exec) {
  const auto machine         = serve::describe_machine(exec);
  const std::string_view git = build_info::git_hash;
  const auto add = [](const char* key, const std::string& value) { benchmark::AddCustomContext(key, value); };
  add("git", std::string(git));
  add("git_dirty", git.ends_with("-dirty") ? "yes" : "no");
  add("kokkos_version", build_info::kokkos_version);
  add("kokkos_devices", build_info::kokkos_devices);
  add("kokkos_arch", build_info::kokkos_arch);
  add("kokkos_options", build_info::kokkos_options);
  add("device", machine.device);
  add("execution_space", machine.execution_space);
  add("concurrency", std::to_string(machine.concurrency));
  add("compiler", build_info::compiler);
  add("cxx_flags", build_info::cxx_flags);
  add("last_level_cache", std::to_string(StreamReader<Exec>::cache_bytes()));
  add("pages",
      "names end in tokens a page; ids are shuffled over the whole pool, and successive calls read other pages");
  add("floor", "a bare read of as many bytes, cold, in this process, at most 20 s before");
}

int run_all(int argc, char** argv) {
  Session session;
#if defined(PAGODA_BENCH_ON_HOST)
  session.fmas_per_second = peak_fmas_per_second();
#endif
#define PAGODA_TYPE_OF_BUILD(name) DType::name,
  const std::vector<DType> types{PAGODA_FOR_EACH_ENABLED_TYPE(PAGODA_TYPE_OF_BUILD)};
#undef PAGODA_TYPE_OF_BUILD
  for (const Case& c : of_types(on_host ? host_cases() : device_cases(), types))
    benchmark::RegisterBenchmark(c.name(backend_of(session.exec, c)).c_str(),
                                 [&session, c](benchmark::State& state) { run(state, session, c); })
        ->UseManualTime()
        ->Unit(benchmark::kMicrosecond);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  add_context(session.exec);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

}  // namespace

}  // namespace pagoda::bench

/// pagoda_bench_decode: the public decode on every problem of the list, beside a bare read of the same bytes.
int main(int argc, char** argv) {
  // One measurement of each, unless the user asks for more: it takes its own samples.
  static char once[] = "--benchmark_min_time=1e-9";
  std::vector<char*> args(argv, argv + argc);
  args.insert(args.begin() + (argc > 0 ? 1 : 0), once);
  int count = static_cast<int>(args.size());
  args.push_back(nullptr);
  benchmark::Initialize(&count, args.data());
  const Kokkos::ScopeGuard kokkos(count, args.data());
  try {
    return pagoda::bench::run_all(count, args.data());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "pagoda_bench_decode: %s\n", error.what());
    return 1;
  }
}
