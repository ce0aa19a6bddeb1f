// SPDX-License-Identifier: Apache-2.0
#include "bench/common/bench_type.hpp"
#include "bench/prefix/measure.hpp"
#include "bench/prefix/plan.hpp"
#include "src/base/by_type.hpp"

#include <pagoda/error.hpp>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

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

/// Whether this benchmark has caches of a type: the plain ones, and those of 8 bits, which have one scale.
template <class T>
inline constexpr bool is_measured =
    !is_quantized_v<T> || (dims_per_element_v<T> == 1 && block_dims_v<T> == 0 && !has_row_format_v<T>);

/// Adds medians of host times, of batches in other orders: planning_us, of a new plan; holds_us, of finding that it
/// still holds; update_us, of a new plan and the copy of its list to the device, with the wait for it.
void add_planning_times(Counters& counters, const Exec& exec, PrefixDecoder<Exec>& decoder, test::PrefixBatch batch) {
  std::map<std::string, std::vector<double>> times;
  batch.sequence_ids.resize(batch.rows.size());
  std::iota(batch.sequence_ids.begin(), batch.sequence_ids.end(), 0);
  for (int i = 0; i < 9; ++i) {
    std::rotate(batch.sequence_ids.begin(), batch.sequence_ids.begin() + 1, batch.sequence_ids.end());
    const BatchPages pages = batch.pages();
    exec.fence("Pagoda::bench::planning");
    const Kokkos::Timer timer;
    decoder.update(exec, pages);
    exec.fence("Pagoda::bench::planning");
    times["update_us"].push_back(timer.seconds() * 1e6);
    times["planning_us"].push_back(decoder.report().planning_us);
    decoder.plan(pages);
    times["holds_us"].push_back(decoder.report().planning_us);
  }
  for (auto& [name, of] : times) {
    std::nth_element(of.begin(), of.begin() + 4, of.end());
    counters[name] = of[4];
  }
}

template <class T>
Outcome measure(Session& session, const PrefixCase& c, Way way, bool warm) {
  using Number             = std::conditional_t<is_quantized_v<T>, half_t, T>;
  using Rows               = Kokkos::View<Number***, Kokkos::LayoutRight, Memory>;
  const Exec& exec         = session.exec;
  test::PrefixBatch batch  = c.batch();
  const PrefixWork work    = work_of(batch);
  const double token_bytes = 2.0 * c.num_kv_heads * c.head_dim * sizeof(T);
  const int sequences      = static_cast<int>(batch.rows.size());
  const int queries        = std::max(c.drafts, 1);  // of each sequence
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
  const int tokens  = way == Way::per_head ? sequences / c.num_kv_heads : sequences * queries;
  const Rows q("Pagoda::bench::q", tokens, c.num_q_heads, c.head_dim);
  const Rows out("Pagoda::bench::out", tokens, c.num_q_heads, c.head_dim);
  fill(exec, q, query_from);

  Outcome o;
  Counters& counters = o.counters;
  std::optional<PrefixDecoder<Exec>> decoder;
  std::optional<ListDecoder<Exec>> lists;
  std::optional<Plan<Exec>> chain;
  EntryList list;
  DecodeOptions<Memory> options{.num_q_heads = c.num_q_heads, .max_seq_len = longest, .max_query_len = queries};
  if (way == Way::per_head || way == Way::tree) {
    const int group = c.num_q_heads / c.num_kv_heads;  // 128 query rows: see decode_entries
    list = way == Way::tree ? draft_list(sequences, queries, 128 / group) : per_head_list(sequences, c.num_kv_heads);
    lists.emplace(exec, list, c.num_q_heads, tokens, caches[0]);
    counters["entries"] = static_cast<double>(list.entries.size());
    o.label             = "lists: " + lists->plan().describe() + "; ";
  } else if (way == Way::chain) {
    chain.emplace(pagoda::plan(exec, caches[0], options));
    o.label = "plan: " + chain->describe() + "; ";
  } else {
    PrefixOptions prefix;
    if (way == Way::packed32) prefix.state_type = DType::fp32;
    decoder.emplace(exec, caches[0], options, prefix);
    add_planning_times(counters, exec, *decoder, batch);
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
    if (lists) return lists->decode(exec, q, caches[i], out);
    if (way == Way::packed || way == Way::packed32) return decoder->decode(exec, q, caches[i], out);
    pagoda::decode(exec, chain ? *chain : decoder->plain_plan(), q, caches[i], out);
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
  // Both products of all query rows with all tokens, also with hidden drafts.
  const double flops      = 4.0 * static_cast<double>(work.tokens) * queries * c.head_dim * c.num_q_heads * part;
  counters["us"]          = o.seconds * 1e6;
  counters["bytes"]       = static_cast<double>(bytes);
  counters["bytes_all"]   = static_cast<double>(work.tokens) * token_bytes * part;
  counters["gflop"]       = flops * 1e-9;
  counters["products_us"] = on_host ? 0 : flops / 6e8;  // at 600 TFLOP/s
  counters["caches"]      = rotation.caches;

  Kokkos::deep_copy(exec, out, Number(std::numeric_limits<float>::quiet_NaN()));
  decode(0);
  exec.fence("Pagoda::bench::checked_decode");
  const auto sight_of = [&](int token, int kv_head) -> Sight {
    if (way == Way::tree) return sight_of_draft(list, token, longest);
    const int sequence = way == Way::per_head ? token * c.num_kv_heads + kv_head : token / queries;
    return {sequence, batch.seq_lens[sequence] - (queries - 1) + token % queries};
  };
  o.fault = find_prefix_fault(caches, Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), q),
                              Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), out),
                              c.num_q_heads / c.num_kv_heads, c.drafts > 0 ? 12 : 3, sight_of);
  return o;
}

/// Options of this program; the others are for the harness.
struct Arguments {
  bool small = false;
  std::vector<std::string> traces;
  std::string types;  ///< separated by commas; empty: bench_type()
};

/// The types of this build by name.
std::vector<DType> types_named(const std::string& names) {
  if (names.empty()) return {bench_type()};
#define PAGODA_TYPE_OF_BUILD(name) DType::name,
  const std::vector<DType> known{PAGODA_FOR_EACH_ENABLED_TYPE(PAGODA_TYPE_OF_BUILD)};
#undef PAGODA_TYPE_OF_BUILD
  std::vector<DType> found;
  std::istringstream each(names);
  for (std::string name; std::getline(each, name, ',');) {
    const auto type = std::find_if(known.begin(), known.end(), [&](DType t) {
      bool measured = false;
      pagoda::detail::by_type(t, [&]<class T>(T*) { measured = is_measured<T>; });
      return measured && name == pagoda::name_of(t);
    });
    pagoda::detail::require(type != known.end(), "--types has ", name,
                            "; allowed: types of this build with at least 8 bits");
    found.push_back(*type);
  }
  return found;
}

Arguments take_arguments(int& argc, char** argv) {
  Arguments a;
  int kept = 1;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--small") == 0) {
      a.small = true;
    } else if (std::strcmp(argv[i], "--trace") == 0 && i + 1 < argc) {
      a.traces.emplace_back(argv[++i]);
    } else if (std::strcmp(argv[i], "--types") == 0 && i + 1 < argc) {
      a.types = argv[++i];
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
  const std::filesystem::path own = PAGODA_PREFIX_TRACE;  // in the sources
  const auto is_own = [&](const std::string& file) { return std::filesystem::path(file).stem() == own.stem(); };
  if (!std::filesystem::exists(own)) {
    std::fprintf(stderr, "no live batches of %s: the file is not here\n", own.c_str());
  } else if (std::none_of(traces.begin(), traces.end(), is_own)) {
    traces.push_back(own);
  }
  for (const std::string& file : traces)
    for (const int sequences : arguments.small ? std::vector{4} : on_host ? std::vector{16} : std::vector{64, 256})
      for (PrefixCase& c : trace_cases(file, sequences, arguments.small ? 32 : on_host ? 16 : 1))
        cases.push_back(std::move(c));
  for (const DType type : types_named(arguments.types))
    for (const PrefixCase& c : cases)
      for (const bool warm : {false, true}) {
        if (warm && !c.warm) continue;
        for (const Way way : c.ways) {
          if (warm && way == Way::packed32) continue;
          harness.add(c.full_name(type, way, warm), [&session, c, way, warm, type] {
            Outcome o;
            pagoda::detail::by_type(type, [&]<class T>(T*) {
              if constexpr (is_measured<T>) o = measure<T>(session, c, way, warm);
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

/// pagoda_bench_prefix: batches that share prefixes, decoded plainly and packed, trees of drafts, and the planner
/// alone.
///
///   --small            very small problems, for tests
///   --trace FILE       also live batches of this trace (the form of pagoda-serve)
///   --types TYPE,...   element types of the caches, such as fp16,bf16; default: one (bench_type)
int main(int argc, char** argv) {
  using namespace pagoda::bench;
  const Arguments arguments = take_arguments(argc, argv);
  return main_of("pagoda_bench_prefix", argc, argv, [&](Harness& harness) { return run_all(harness, arguments); });
}
