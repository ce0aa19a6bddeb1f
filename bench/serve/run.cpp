// SPDX-License-Identifier: Apache-2.0
#include "bench/serve/run.hpp"

#include "bench/serve/server.hpp"
#include "bench/serve/text.hpp"
#include "bench/stream/stream_read.hpp"
#include "src/base/by_type.hpp"

#include <pagoda/kv_capacity.hpp>
#include <pagoda/kv_pool.hpp>

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <utility>

namespace pagoda::serve {

namespace {

using Exec   = Kokkos::DefaultExecutionSpace;
using Memory = Exec::memory_space;

constexpr bool on_host = Kokkos::SpaceAccessibility<Kokkos::HostSpace, Memory>::accessible;

/// The trace as it will be served: scaled, without the requests that are too long.
Trace prepare(const Options& o, Results& r) {
  const Trace whole = scaled(read_trace(o.trace_file), o.scale);
  r.max_len         = o.max_len > 0 ? o.max_len : whole.longest();
  Trace trace       = whole;
  std::erase_if(trace.requests, [&](const Request& q) { return q.total_length() > r.max_len; });
  detail::require(!trace.requests.empty(), "max-len is ", r.max_len, "; allowed: the length of some request or more");
  const auto slash = o.trace_file.find_last_of('/');
  r.trace.name     = slash == std::string::npos ? o.trace_file : o.trace_file.substr(slash + 1);
  r.trace.requests = static_cast<int>(trace.requests.size());
  r.trace.left_out = static_cast<int>(whole.requests.size() - trace.requests.size());
  for (const Request& q : trace.requests) {
    r.trace.mean_input += static_cast<double>(q.input_length) / r.trace.requests;
    r.trace.mean_output += static_cast<double>(q.output_length) / r.trace.requests;
  }
  return trace;
}

/// The capacity within the budget, in pages of page_size tokens, with enough slots for all sequences.
Capacity capacity_for(const Results& r, int page_size, const Trace& trace, int steps) {
  const std::int64_t pages = r.budget / (r.token_bytes * page_size);
  const Capacity unbounded{std::numeric_limits<int>::max(), pages, page_size};
  detail::require(unbounded.pages_for(r.max_len) <= pages, "memory-gb is ", r.options.memory_gb, ", which is ",
                  three_digits(static_cast<double>(r.budget) * 1e-9), " GB for each pool at scale ", r.options.scale,
                  "; allowed: room for one sequence of ", r.max_len, " tokens, which takes ",
                  three_digits(static_cast<double>(unbounded.pages_for(r.max_len) * page_size * r.token_bytes) * 1e-9),
                  " GB");
  detail::require(pages <= std::numeric_limits<int>::max(), "the memory makes ", pages, " pages of ", page_size,
                  " tokens; allowed: below 2^31 (a larger page-size, or less memory)");
  return {std::max(forecast(trace.requests, unbounded, steps).peak_live, 1), pages, page_size};
}

/// Times a bare read of a median step's bytes of each pool.
void measure_floors(const Exec& exec, Results& r) {
  constexpr std::int64_t enough = std::int64_t(1) << (on_host ? 30 : 32);
  const std::int64_t longest    = std::max(r.contiguous.floor.bytes, r.paged.floor.bytes);
  bench::StreamReader<Exec> reader(exec, static_cast<std::size_t>(std::min(longest, enough)));
  Progress progress("streaming read", 2, "sizes");
  for (Floor* floor : {&r.contiguous.floor, &r.paged.floor}) {
    const auto reading = reader.read(static_cast<std::size_t>(floor->bytes));
    if (floor->seconds == 0 || reading.seconds < floor->seconds)
      floor->seconds = reading.seconds, floor->shape = reading.shape;
    progress.add(1);
  }
}

std::int64_t prompt_tokens(const std::vector<Request>& requests, int first) {
  std::int64_t sum = 0;
  for (int i = 0; i < first; ++i) sum += requests[i % requests.size()].input_length;
  return sum;
}

/// Number of sequences that an empty pool admits at first.
int first_batch(const std::vector<Request>& requests, const Capacity& capacity) {
  return static_cast<int>(Scheduler(requests, capacity).admit().size());
}

template <class T>
class Run {
 public:
  Run(const Exec& exec, const Trace& trace, Results& results)
      : exec_(exec), workload_(trace, results.model, results.options.seed), r_(results) {}

  using Contiguous = Server<ContiguousPool<T, Exec>>;
  using Paged      = Server<PagedPool<T, Exec>>;

  void all(const Capacity& contiguous, const Capacity& paged) {
    {
      Contiguous server(exec_, workload_, contiguous, r_.max_len);
      fill(server, r_.contiguous);
      compare(server);
      serve(server, r_.contiguous);
    }
    Paged server(exec_, workload_, paged, r_.max_len);
    scatter_pages(exec_, server.pool(), r_.options.seed);
    fill(server, r_.paged);
    serve(server, r_.paged);
  }

 private:
  template <class AnyServer>
  void fill(AnyServer& server, PoolResult& result) {
    const int batch = first_batch(workload_.requests(), server.scheduler().capacity());
    const Kokkos::Timer timer;
    {
      Progress progress(result.name + ": fill", prompt_tokens(workload_.requests(), batch), "tokens");
      server.admit(&progress);
    }
    result.fill_seconds  = timer.seconds();
    result.backend       = server.pool().plan().backend();
    result.max_sequences = server.scheduler().capacity().max_sequences;
    result.pages         = server.pool().num_pages();
    result.page_size     = server.pool().page_size();
    result.bytes         = server.pool().bytes_allocated();
  }

  /// The contiguous pool's first batch, and the same batch in scattered pages of a paged pool of the needed size. They
  /// decode in turns, so that other work on the machine affects both.
  void compare(Contiguous& contiguous) {
    const auto& live = contiguous.scheduler().live();
    const int page   = r_.options.page_size;
    Capacity capacity{static_cast<int>(live.size()), 0, page};
    for (const Live& s : live) capacity.pages += capacity.pages_for(s.final_length);
    for (const Request& q : workload_.requests())
      capacity.pages = std::max(capacity.pages, capacity.pages_for(q.total_length()));
    Paged paged(exec_, workload_, capacity, r_.max_len);
    scatter_pages(exec_, paged.pool(), r_.options.seed);
    paged.admit();
    contiguous.make_queries();
    paged.make_queries();
    const int repeats   = std::max(repeats_for(contiguous), repeats_for(paged));
    constexpr int turns = 30;
    Progress progress("the same batch in both", turns, "turns");
    std::vector<double> a, b;
    for (int i = 0; i < turns; ++i) {
      if (i % 2 == 0) a.push_back(contiguous.decode(repeats));
      b.push_back(paged.decode(repeats));
      if (i % 2 == 1) a.push_back(contiguous.decode(repeats));
      progress.add(1);
    }
    r_.same_batch = {static_cast<int>(live.size()), contiguous.scheduler().tokens_held() * r_.token_bytes, median(a),
                     median(b)};
  }

  /// Enough decodes between two fences that the fences do not count. The KV cache is far larger than the machine's
  /// caches, so each decode reads memory.
  template <class AnyServer>
  static int repeats_for(AnyServer& server) {
    if (on_host) return 1;
    server.decode(1);
    return std::clamp(static_cast<int>(0.01 / server.decode(1)), 1, 50);
  }

  template <class AnyServer>
  void serve(AnyServer& server, PoolResult& result) {
    const Options& o = r_.options;
    Progress progress(result.name + ": decode", o.warmup + o.steps, "steps");
    int repeats = 1;
    for (int i = 0; i < o.warmup + o.steps; ++i) {
      server.admit();
      server.append();
      server.make_queries();
      if (i == 0) repeats = repeats_for(server);
      const double seconds = server.decode(repeats);
      if (i >= o.warmup) {
        const auto& scheduler = server.scheduler();
        const auto tokens     = scheduler.tokens_held();
        detail::require(server.pool().tokens_held() == tokens, "the ", result.name, " pool holds ",
                        server.pool().tokens_held(), " tokens; it should hold ", tokens);
        result.steps.push_back({static_cast<int>(scheduler.live().size()), tokens, tokens * r_.token_bytes,
                                server.pool().waste(), seconds});
      }
      server.check(o.check, o.seed + static_cast<std::uint64_t>(i), result.check);
      server.retire();
      progress.add(1);
    }
    result.admitted       = server.scheduler().admitted();
    result.finished       = server.scheduler().finished();
    result.append_seconds = server.append_seconds();
  }

  Exec exec_;
  Workload<Memory> workload_;
  Results& r_;
};

}  // namespace

Results run(const Options& options) {
  Results r;
  r.options         = options;
  r.model           = find_model(options.model);
  r.token_bytes     = bytes_per_token(r.model.num_kv_heads, r.model.head_dim, options.type);
  const Trace trace = prepare(options, r);
  r.budget          = static_cast<std::int64_t>(options.memory_gb * 1e9 / options.scale);
  r.contiguous.name = "contiguous";
  r.paged.name      = "paged";

  const int steps           = options.warmup + options.steps;
  const Capacity contiguous = capacity_for(r, r.max_len, trace, steps);
  const Capacity paged      = capacity_for(r, options.page_size, trace, steps);
  r.contiguous.floor.bytes  = forecast(trace.requests, contiguous, steps).median_tokens * r.token_bytes;
  r.paged.floor.bytes       = forecast(trace.requests, paged, steps).median_tokens * r.token_bytes;

  const Exec exec;
  measure_floors(exec, r);
  detail::by_plain_type(options.type, [&]<class T>(T*) { Run<T>(exec, trace, r).all(contiguous, paged); });
  measure_floors(exec, r);  // the faster of two reads, before and after the run
  return r;
}

}  // namespace pagoda::serve
