// SPDX-License-Identifier: Apache-2.0
#include "bench/common/arena.hpp"
#include "bench/common/caches.hpp"
#include "bench/common/timing.hpp"
#include "bench/common/verify.hpp"
#include "bench/decode/cases.hpp"
#if defined(PAGODA_BENCH_ON_HOST)
#include "bench/decode/fma_peak.hpp"
#endif
#include "bench/common/harness.hpp"
#include "src/base/by_type.hpp"

#include <pagoda/decode.hpp>
#include <pagoda/error.hpp>
#include <pagoda/plan.hpp>

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace pagoda::bench {

namespace {

using Exec             = Kokkos::DefaultExecutionSpace;
using Memory           = Exec::memory_space;
constexpr bool on_host = std::is_same_v<Memory, Kokkos::HostSpace>;

/// State that the benchmarks of one process share.
struct Session {
  Exec exec;
  Floors<Exec> floors{exec};
  Arena<Exec> arena{exec};
  double fmas_per_second = 0;  ///< 0: unknown; it does not limit GPUs
};

/// Where the query tokens of each sequence begin. Empty if all sequences have the same number of query tokens.
Kokkos::View<const int*, Memory> cu_seqlens_q(const Case& c) {
  if (!c.ragged()) return {};
  const Kokkos::View<int*, Kokkos::HostSpace> begins("Pagoda::bench::cu_seqlens_q", c.batch() + 1);
  for (int b = 0; b <= c.batch(); ++b) begins(b) = c.query_begin(b);
  return Kokkos::create_mirror_view_and_copy(Memory(), begins);
}

/// A number of each query head, or an empty View.
template <class Number>
Kokkos::View<const float*, Memory> per_head(const Case& c, bool wanted, const Number& number) {
  if (!wanted) return {};
  const Kokkos::View<float*, Kokkos::HostSpace> numbers("Pagoda::bench::per_head", c.num_q_heads);
  for (int h = 0; h < c.num_q_heads; ++h) numbers(h) = number(h);
  return Kokkos::create_mirror_view_and_copy(Memory(), numbers);
}

Plan<Exec> make_plan(const Exec& exec, const Case& c, const auto& caches, const std::string& backend) {
  const CaseOptions& o = c.options;
  return caches.with(0, [&](const auto& kv) {
    return plan(exec, kv,
                {.num_q_heads        = c.num_q_heads,
                 .max_seq_len        = c.longest(),
                 .max_query_len      = c.num_q_tokens,
                 .cu_seqlens_q       = cu_seqlens_q(c),
                 .max_query_tokens   = c.query_begin(c.batch()),
                 .window_left        = o.window_left,
                 .num_initial_tokens = o.num_initial_tokens,
                 .logit_soft_cap     = o.logit_soft_cap,
                 .alibi_slopes       = per_head(c, o.alibi, [&](int h) { return o.alibi_slope(h); }),
                 .sinks              = per_head(c, o.sinks, [&](int h) { return o.sink(h); }),
                 .backend            = backend,
                 .checked            = c.checked,
                 .exactness          = c.exactness});
  });
}

bool can_run(const Exec& exec, const Case& c, const std::string& backend) {
  try {
    pagoda::detail::by_type(c.type,
                            [&]<class T>(T*) { make_plan(exec, c, Caches<Exec, T>(exec, c, nullptr, 1), backend); });
    return true;
  } catch (const InvalidArgument&) {
    return false;
  }
}

/// The backends that support the case, in turn; "none" if there is no plan, and running it then reports why.
std::vector<std::string> backends_of(const Exec& exec, const Case& c) {
  std::vector<std::string> names;
  for (const std::string name : {"tuned", "generic"})
    if (can_run(exec, c, name)) names.push_back(name);
  if (names.empty()) names.emplace_back("none");
  return names;
}

/// The default backend of the case.
std::string default_backend(const Exec& exec, const Case& c) {
  std::string name;
  pagoda::detail::by_type(
      c.type, [&]<class T>(T*) { name = make_plan(exec, c, Caches<Exec, T>(exec, c, nullptr, 1), "").backend(); });
  return name;
}

struct Result {
  Rotation rotation;
  double seconds = 0;
  Reading floor;
  double pages_seconds = 0;  ///< bare read of the pages, in the order of their block table; 0: not measured
  std::string fault;
  int rows_checked = 0;
};

/// Seconds of a bare read of a cache's pages, in the order of its block table. For hosts.
template <class T>
double seconds_of_pages(Session& session, const Caches<Exec, T>& caches, const Rotation& rotation) {
  std::vector<std::vector<portable::Run>> runs;
  runs.reserve(rotation.caches);
  for (int i = 0; i < rotation.caches; ++i) runs.push_back(caches.page_runs(i));
  const Kokkos::View<std::uint64_t*, Memory> folds("Pagoda::bench::folds", session.exec.concurrency());
  return seconds_of_call(session.exec, rotation, session.floors.reader(), [&](int i) {
    portable::host_read_runs(session.exec, std::span<const portable::Run>(runs[i]), folds);
  });
}

template <class T>
Result measure(Session& session, const Case& c, const std::string& backend) {
  const Exec& exec = session.exec;
  Result r;
  StreamReader<Exec>& reader = session.floors.reader();  // before the arena: it takes what is left
  r.rotation                 = Caches<Exec, T>::rotation_in(session.arena, c, reader.cache_bytes());
  const T* const memory      = session.arena.get<T>(Caches<Exec, T>::elements(c, r.rotation.caches));
  const Caches<Exec, T> caches(exec, c, memory, r.rotation.caches);

  using Number = std::conditional_t<has_row_format_v<T>, bfloat16_t, std::conditional_t<is_quantized_v<T>, half_t, T>>;
  using Rows   = Kokkos::View<Number***, Kokkos::LayoutRight, Memory>;
  const Rows q("Pagoda::bench::q", c.query_begin(c.batch()), c.num_q_heads, c.head_dim);
  const Rows out("Pagoda::bench::out", c.query_begin(c.batch()), c.num_q_heads, c.head_dim_v);
  fill(exec, q, query_from);
  const auto plan   = make_plan(exec, c, caches, backend);
  const auto decode = [&](int i) { caches.with(i, [&](const auto& kv) { pagoda::decode(exec, plan, q, kv, out); }); };

  r.floor   = session.floors.of(c.bytes(), r.rotation.calls, session.arena.memory());
  r.seconds = seconds_of_call(exec, r.rotation, reader, decode);
  if constexpr (on_host)
    if (c.paged()) r.pages_seconds = seconds_of_pages(session, caches, r.rotation);

  Kokkos::deep_copy(exec, out, Number(std::numeric_limits<float>::quiet_NaN()));
  decode(0);
  exec.fence("Pagoda::bench::checked_decode");
  r.fault = find_fault(c, caches, Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), q),
                       Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), out), r.rows_checked);
  return r;
}

Outcome outcome_of(const Session& session, const Case& c, const std::string& backend, const Result& r) {
  const double us = r.seconds * 1e6, floor_us = r.floor.seconds * 1e6, bytes = static_cast<double>(c.bytes());
  Outcome o{r.seconds, {}, "floor: " + r.floor.shape, r.fault};
  Counters& counters   = o.counters;
  counters["bytes"]    = bytes;
  counters["us"]       = us;
  counters["floor_us"] = floor_us;
  counters["ratio"]    = us / floor_us;
  counters["over_us"]  = us - floor_us;
  if (r.pages_seconds > 0) {
    counters["pages_us"]       = r.pages_seconds * 1e6;
    counters["ratio_of_pages"] = r.seconds / r.pages_seconds;
  }
  counters["gb_per_s"]     = bytes / r.seconds * 1e-9;
  counters["pct_of_read"]  = 100 * floor_us / us;
  counters["caches"]       = r.rotation.caches;
  counters["rows_checked"] = r.rows_checked;
  counters["is_default"]   = backend == default_backend(session.exec, c);
  if (const auto bar = bar_us(c, backend, floor_us); bar && !on_host) counters["bar_us"] = *bar;
  if (session.fmas_per_second > 0) {
    const double limit_us    = std::max(floor_us, c.fmas() / session.fmas_per_second * 1e6);
    counters["limit_us"]     = limit_us;
    counters["pct_of_limit"] = 100 * limit_us / us;
  }
  return o;
}

int run_all(Harness& harness) {
  Session session;
#if defined(PAGODA_BENCH_ON_HOST)
  session.fmas_per_second = peak_fmas_per_second();
#endif
#define PAGODA_TYPE_OF_BUILD(name) DType::name,
  const std::vector<DType> types{PAGODA_FOR_EACH_ENABLED_TYPE(PAGODA_TYPE_OF_BUILD)};
#undef PAGODA_TYPE_OF_BUILD
  for (const Case& c : of_types(on_host ? host_cases() : device_cases(), types))
    for (const std::string& backend : backends_of(session.exec, c))
      harness.add(c.name(backend), [&session, c, backend] {
        Result r;
        pagoda::detail::by_type(c.type, [&]<class T>(T*) { r = measure<T>(session, c, backend); });
        return outcome_of(session, c, backend, r);
      });
  return harness.run();
}

}  // namespace

}  // namespace pagoda::bench

/// pagoda_bench_decode: the public decode on every problem of the list, beside a bare read of the same bytes.
int main(int argc, char** argv) {
  return pagoda::bench::main_of("pagoda_bench_decode", argc, argv, pagoda::bench::run_all);
}
