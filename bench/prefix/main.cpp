// SPDX-License-Identifier: Apache-2.0
#include "bench/common/bench_type.hpp"
#include "bench/prefix/measure.hpp"
#include "bench/prefix/plan.hpp"
#include "src/base/by_type.hpp"

#include <pagoda/error.hpp>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>

namespace pagoda::bench {

namespace {

using Exec             = Kokkos::DefaultExecutionSpace;
using Memory           = Exec::memory_space;
constexpr bool on_host = std::is_same_v<Memory, Kokkos::HostSpace>;

/// State that the benchmarks of one process share.
struct Session {
  bool small = false;  ///< only to see that all runs: times are of single calls, and nothing is read beside them
  Exec exec;
  Floors<Exec> floors{exec};
  Arena<Exec> arena{exec};
};

/// Entries of which each reads one kv head: sequence s of the tables is kv head s % heads of query token s / heads.
/// The problem is made by hand, because there are no partial states.
template <class T>
class HeadEntries {
 public:
  HeadEntries(const Exec& exec, const PrefixCase& c, int sequences, const PagedKV<T, Memory>& kv)
      : tokens_(sequences / c.num_kv_heads),
        entries_("Pagoda::bench::entries", sequences),
        queries_("Pagoda::bench::queries", sequences) {
    const auto entries = Kokkos::create_mirror_view(entries_);
    const auto queries = Kokkos::create_mirror_view(queries_);
    for (int s = 0; s < sequences; ++s) {
      entries(s) = {s, 0, -1, s, 1, -1, s % c.num_kv_heads};
      queries(s) = {s / c.num_kv_heads, s, 1};
    }
    Kokkos::deep_copy(entries_, entries), Kokkos::deep_copy(queries_, queries);
    DecodeOptions<Memory> options{.num_q_heads = c.num_q_heads, .max_query_tokens = tokens_};
    options.entries = {sequences, 1, sequences};
    plan_           = std::make_unique<Plan<Exec>>(pagoda::plan(exec, kv, options));
  }
  int tokens() const { return tokens_; }
  template <class Rows>
  void decode(const Exec& exec, const Rows& q, const PagedKV<T, Memory>& kv, const Rows& out) const {
    pagoda::detail::Problem p{kv.ref(), tensor_ref(q), tensor_ref(out), {}};
    p.entries.entries = entries_.data(), p.entries.num_entries = entries_.extent_int(0);
    p.entries.queries = queries_.data(), p.entries.num_queries = queries_.extent_int(0);
    pagoda::detail::decode_entries(exec, *plan_, p);
  }

 private:
  int tokens_;
  Kokkos::View<Entry*, Memory> entries_;
  Kokkos::View<EntryQuery*, Memory> queries_;
  std::unique_ptr<Plan<Exec>> plan_;
};

/// Median time of new plans, of batches in other orders.
double planning_us(PrefixDecoder<Exec>& decoder, test::PrefixBatch batch) {
  std::vector<double> times;
  batch.sequence_ids.resize(batch.rows.size());
  std::iota(batch.sequence_ids.begin(), batch.sequence_ids.end(), 0);
  for (int i = 0; i < 9; ++i) {
    std::rotate(batch.sequence_ids.begin(), batch.sequence_ids.begin() + 1, batch.sequence_ids.end());
    decoder.plan(batch.pages());
    times.push_back(decoder.report().planning_us);
  }
  std::nth_element(times.begin(), times.begin() + 4, times.end());
  return times[4];
}

template <class T>
Outcome measure(Session& session, const PrefixCase& c, Way way, bool warm) {
  using Rows               = Kokkos::View<T***, Kokkos::LayoutRight, Memory>;
  const Exec& exec         = session.exec;
  test::PrefixBatch batch  = c.batch();
  const PrefixWork work    = work_of(batch);
  const double token_bytes = 2.0 * c.num_kv_heads * c.head_dim * sizeof(T);
  // Lists of single kv heads read one head of each token.
  const double part = way == Way::per_head ? 1.0 / c.num_kv_heads : 1;
  const auto bytes  = static_cast<std::size_t>(
      static_cast<double>(way == Way::per_head ? work.tokens : work.unique_tokens) * token_bytes * part);

  if (!session.small) session.floors.reader();  // before the arena: it takes what is left
  Rotation rotation = session.small ? Rotation{2, 2}
                                    : bench::rotation(PrefixCaches<Exec, T>::elements(c, work, 1) * sizeof(T),
                                                      StreamReader<Exec>::cache_bytes(), session.arena.limit());
  pagoda::detail::require(rotation.caches > 0, "one cache does not fit the memory");
  if (warm) rotation.caches = 1;

  const T* const memory = session.arena.get<T>(PrefixCaches<Exec, T>::elements(c, work, rotation.caches));
  const PrefixCaches<Exec, T> caches(exec, c, batch, work, memory, rotation.caches);

  const int longest = *std::max_element(batch.seq_lens.begin(), batch.seq_lens.end());
  const int tokens  = static_cast<int>(batch.rows.size()) / (way == Way::per_head ? c.num_kv_heads : 1);
  const Rows q("Pagoda::bench::q", tokens, c.num_q_heads, c.head_dim);
  const Rows out("Pagoda::bench::out", tokens, c.num_q_heads, c.head_dim);
  fill(exec, q, query_from);

  Outcome o;
  Counters& counters = o.counters;
  std::optional<PrefixDecoder<Exec>> decoder;
  std::optional<HeadEntries<T>> heads;
  if (way == Way::per_head) {
    heads.emplace(exec, c, static_cast<int>(batch.rows.size()), caches[0]);
  } else {
    PrefixOptions options;
    if (way == Way::packed16) options.state_type = DType::fp16;
    decoder.emplace(exec, caches[0], DecodeOptions<Memory>{.num_q_heads = c.num_q_heads, .max_seq_len = longest},
                    options);
    counters["planning_us"] = planning_us(*decoder, batch);
    decoder->update(exec, batch.pages());
    const PrefixReport& report      = decoder->report();
    counters["predicted_plain_us"]  = report.plain_us;
    counters["predicted_packed_us"] = report.packed_us;
    if (way != Way::plain) {
      counters["is_packed"] = decoder->packed();
      counters["entries"]   = report.entries;
      counters["states"]    = report.states;
      o.label               = report.plain_because ? std::string("plain: ") + report.plain_because + "; " : "";
      if (decoder->packed()) o.label += "lists: " + decoder->list_plan().describe() + "; ";
    }
  }
  const auto decode = [&](int i) {
    switch (way) {
      case Way::plain:
        return pagoda::decode(exec, decoder->plain_plan(), q, caches[i], out);
      case Way::per_head:
        return heads->decode(exec, q, caches[i], out);
      default:
        return decoder->decode(exec, q, caches[i], out);
    }
  };

  if (session.small) {
    const Kokkos::Timer timer;
    decode(0);
    exec.fence("Pagoda::bench::small");
    o.seconds = timer.seconds();
  } else {
    StreamReader<Exec>& reader = session.floors.reader();
    const Reading floor        = session.floors.of(bytes, rotation.calls, session.arena.memory());
    o.seconds                  = seconds_of_call(exec, rotation, reader, decode);
    counters["queued_us"]      = seconds_without_graph(exec, rotation, reader, decode) * 1e6;
    counters["floor_us"]       = floor.seconds * 1e6;
    counters["ratio"]          = o.seconds / floor.seconds;
    o.label += "floor: " + floor.shape;
  }
  // Both products of all query heads with all tokens.
  const double flops      = 4.0 * static_cast<double>(work.tokens) * c.head_dim * c.num_q_heads * part;
  counters["us"]          = o.seconds * 1e6;
  counters["bytes"]       = static_cast<double>(bytes);
  counters["bytes_all"]   = static_cast<double>(work.tokens) * token_bytes * part;
  counters["gflop"]       = flops * 1e-9;
  counters["products_us"] = on_host ? 0 : flops / 6e8;  // at 600 TFLOP/s
  counters["caches"]      = rotation.caches;

  Kokkos::deep_copy(exec, out, T(std::numeric_limits<float>::quiet_NaN()));
  decode(0);
  exec.fence("Pagoda::bench::checked_decode");
  o.fault = find_prefix_fault(
      caches, Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), q),
      Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), out), c.num_q_heads / c.num_kv_heads,
      [&](int token, int kv_head) { return way == Way::per_head ? token * c.num_kv_heads + kv_head : token; });
  return o;
}

/// Options of this program; the others are for the harness.
struct Arguments {
  bool small = false;
  std::vector<std::string> traces;
};

Arguments take_arguments(int& argc, char** argv) {
  Arguments a;
  int kept = 1;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--small") == 0) {
      a.small = true;
    } else if (std::strcmp(argv[i], "--trace") == 0 && i + 1 < argc) {
      a.traces.emplace_back(argv[++i]);
    } else {
      argv[kept++] = argv[i];
    }
  }
  argc = kept;
  return a;
}

int run_all(Harness& harness, const Arguments& arguments) {
  Session session;
  session.small                   = arguments.small;
  std::vector<PrefixCase> cases   = arguments.small ? small_prefix_cases()
                                    : on_host       ? host_prefix_cases()
                                                    : device_prefix_cases();
  std::vector<std::string> traces = arguments.traces;
  traces.emplace_back(PAGODA_PREFIX_TRACE);
  for (const std::string& file : traces)
    for (const int sequences : arguments.small ? std::vector{4} : on_host ? std::vector{16} : std::vector{64, 256})
      for (PrefixCase& c : trace_cases(file, sequences, arguments.small ? 32 : on_host ? 16 : 1))
        cases.push_back(std::move(c));
  const DType type = bench_type();
  for (const PrefixCase& c : cases)
    for (const bool warm : {false, true}) {
      if (warm && !c.warm) continue;
      for (const Way way : c.ways) {
        if (warm && way == Way::packed16) continue;
        harness.add(c.full_name(type, way, warm), [&session, c, way, warm, type] {
          Outcome o;
          pagoda::detail::by_type(type, [&]<class T>(T*) {
            if constexpr (!is_quantized_v<T>) o = measure<T>(session, c, way, warm);
          });
          return o;
        });
      }
    }
  if (!arguments.small) add_planning(harness);
  return harness.run();
}

}  // namespace

}  // namespace pagoda::bench

/// pagoda_bench_prefix: batches that share prefixes, decoded plainly and packed, and the planner alone.
///
///   --small        very small problems, for tests
///   --trace FILE   also live batches of this trace (the form of pagoda-serve)
int main(int argc, char** argv) {
  using namespace pagoda::bench;
  const Arguments arguments = take_arguments(argc, argv);
  return main_of("pagoda_bench_prefix", argc, argv, [&](Harness& harness) { return run_all(harness, arguments); });
}
