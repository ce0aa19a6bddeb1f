// SPDX-License-Identifier: Apache-2.0
#include "bench/common/arena.hpp"
#include "bench/common/bench_type.hpp"
#include "bench/common/machine.hpp"
#include "bench/common/timing.hpp"
#include "src/base/by_type.hpp"

#include <pagoda/entries.hpp>
#include <pagoda/prefix.hpp>

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <vector>

/// pagoda-tune of a build without hand-tuned kernels: measures the numbers of the generic kernel's cost model.
namespace pagoda::bench {

namespace {

using Exec             = Kokkos::DefaultExecutionSpace;
using Memory           = Exec::memory_space;
constexpr bool on_host = std::is_same_v<Memory, Kokkos::HostSpace>;
constexpr int heads = 8, head_dim = 128;  // each query head has a KV head of its own

/// The default of PrefixDecoder's partial states.
template <class T>
using StateOf = std::conditional_t<!on_host && sizeof(T) == 2, T, float>;

/// Progress.
void say(const char* what) { std::fprintf(stderr, "pagoda-tune: %s\n", what); }

/// Times lists over one contiguous sequence, whose keys and values stay in a cache.
template <class T>
class ListTimer {
 public:
  using Rows = Kokkos::View<T***, Kokkos::LayoutRight, Memory>;

  ListTimer(const Exec& exec, StreamReader<Exec>* reader, int tokens, int most_entries, int most_queries)
      : exec_(exec),
        reader_(reader),
        tokens_(tokens),
        seq_lens_("Pagoda::tune::seq_lens", 1),
        k_("Pagoda::tune::k", 1, tokens, heads, head_dim),
        v_("Pagoda::tune::v", 1, tokens, heads, head_dim),
        q_("Pagoda::tune::q", std::size_t(most_entries) * most_queries, heads, head_dim),
        out_("Pagoda::tune::out", q_.extent(0), heads, head_dim),
        state_out_("Pagoda::tune::state_out", q_.extent(0), heads, head_dim),
        state_lse_("Pagoda::tune::state_lse", q_.extent(0), heads) {
    Kokkos::deep_copy(exec, seq_lens_, tokens);
    const auto numbers = [&](const auto& view, std::uint64_t first) {
      Kokkos::parallel_for(
          "Pagoda::tune::fill", Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::size_t>>(exec, 0, view.size()),
          KOKKOS_LAMBDA(std::size_t i) { view.data()[i] = arena_element<T>(first + i); });
    };
    numbers(k_, 0), numbers(v_, k_.size()), numbers(q_, query_from);
    DecodeOptions<Memory> options{.num_q_heads = heads, .max_query_tokens = q_.extent_int(0)};
    options.entries = {most_entries, most_queries, q_.extent_int(0)};
    lists_          = std::make_unique<Plan<Exec>>(pagoda::plan(exec, kv(), options));
    plain_          = std::make_unique<Plan<Exec>>(pagoda::plan(exec, kv(), {.num_q_heads = heads}));
  }

  /// Microseconds of a list of entries that each read `tokens` tokens for `queries` query tokens. states: entries write
  /// partial states, and a merge follows.
  double list_us(int entries, int tokens, int queries, bool states) {
    const int rows = entries * queries;
    std::vector<Entry> list;
    std::vector<EntryQuery> tokens_of;
    std::vector<int> state_begin{0};
    list.reserve(entries), tokens_of.reserve(rows), state_begin.reserve(rows + 1);
    for (int e = 0; e < entries; ++e) list.push_back({0, 0, tokens, e * queries, queries, states ? 0 : -1});
    for (int t = 0; t < rows; ++t) tokens_of.push_back({t, 0, 1}), state_begin.push_back(t + 1);
    const auto entries_on = on_device(list);
    const auto queries_on = on_device(tokens_of);
    const auto begin_on   = on_device(state_begin);
    const auto part       = [&](const auto& view) {
      return tensor_ref(Kokkos::subview(view, std::pair(0, rows), Kokkos::ALL, Kokkos::ALL));
    };
    pagoda::detail::Problem p{kv().ref(), part(q_), part(out_), {}};
    p.entries.entries = entries_on.data(), p.entries.num_entries = entries;
    p.entries.queries = queries_on.data(), p.entries.num_queries = rows;
    if (states) {
      p.entries.state_begin = begin_on.data(), p.entries.num_state_begin = rows + 1;
      p.state_out = part(state_out_);
      p.state_lse = tensor_ref(Kokkos::subview(state_lse_, std::pair(0, rows), Kokkos::ALL));
    }
    return timed([&](int) {
      pagoda::detail::decode_entries(exec_, *lists_, p);
      if (states) pagoda::detail::merge_entries(exec_, p, nullptr);
    });
  }

  /// Microseconds of a plain decode of the first `tokens` tokens.
  double plain_us(int tokens) {
    Kokkos::deep_copy(exec_, seq_lens_, tokens);
    const auto one = Kokkos::subview(q_, std::pair(0, 1), Kokkos::ALL, Kokkos::ALL);
    const auto out = Kokkos::subview(out_, std::pair(0, 1), Kokkos::ALL, Kokkos::ALL);
    const double t = timed([&](int) { pagoda::decode(exec_, *plain_, one, kv(), out); });
    Kokkos::deep_copy(exec_, seq_lens_, tokens_);
    return t;
  }

  const Plan<Exec>& lists() const { return *lists_; }

 private:
  ContiguousKV<T, Memory> kv() const { return {k_, v_, seq_lens_}; }

  template <class Element>
  Kokkos::View<Element*, Memory> on_device(const std::vector<Element>& from) const {
    const Kokkos::View<Element*, Memory> to("Pagoda::tune::list", from.size());
    Kokkos::deep_copy(to, Kokkos::View<const Element*, Kokkos::HostSpace>(from.data(), from.size()));
    return to;
  }

  template <class Call>
  double timed(const Call& call) const {
    if (reader_) return 1e6 * seconds_of_call(exec_, Rotation{1, on_host ? 1 : 20}, *reader_, call);
    const Kokkos::Timer timer;
    call(0);
    exec_.fence("Pagoda::tune::small");
    return 1e6 * timer.seconds();
  }

  Exec exec_;
  StreamReader<Exec>* reader_;
  int tokens_;
  Kokkos::View<int*, Memory> seq_lens_;
  Kokkos::View<T****, Kokkos::LayoutRight, Memory> k_, v_;
  Rows q_, out_;
  Kokkos::View<StateOf<T>***, Kokkos::LayoutRight, Memory> state_out_;
  Kokkos::View<float**, Kokkos::LayoutRight, Memory> state_lse_;
  std::unique_ptr<Plan<Exec>> lists_, plain_;
};

/// Measures DeviceRates. Each number is what makes the cost model (src/plan/prefix/cost.hpp) predict the times of these
/// lists. reader: null to run everything once on a very small problem, whose times mean nothing.
template <class T>
DeviceRates measure_rates(const Exec& exec, StreamReader<Exec>* reader, const DeviceRates& built_in) {
  DeviceRates r            = built_in;
  const double token_bytes = 2.0 * heads * head_dim * sizeof(T);
  // A host's cores read caches of their own; the last-level cache of a virtual machine may be another machine's.
  const double cached =
      on_host ? 1e6 * exec.concurrency() : 0.25 * static_cast<double>(StreamReader<Exec>::cache_bytes());
  const int tokens    = reader ? std::clamp(static_cast<int>(cached / token_bytes) / 32 * 32, 256, 16384) : 64;
  const int entries   = reader ? std::max(built_in.teams / 4, 4) : 2;
  const int most_rows = built_in.tiles.back().rows;
  ListTimer<T> timer(exec, reader, tokens, entries, most_rows);

  if (reader) {
    say("bare reads");
    const auto memory     = reader->read(on_host ? std::size_t(1) << 28 : std::size_t(1) << 30);
    r.memory_bytes_per_us = static_cast<double>(memory.bytes) / memory.seconds * 1e-6;
  }
  say("tiles");
  double fastest = 0;  // us for a token, for all KV heads
  std::vector<double> pass;
  for (RowTile& tile : r.tiles) {
    const double whole = timer.list_us(entries, tokens, tile.rows, false);
    const double half  = timer.list_us(entries, tokens / 2, tile.rows, false);
    pass.push_back(std::max(whole - half, 1e-3 * whole) / (entries * (tokens / 2.0)));
    tile.flops_per_us = 4.0 * tile.rows * head_dim * heads / pass.back();
    fastest           = fastest == 0 ? pass.back() : std::min(fastest, pass.back());
    if (&tile == &r.tiles.front()) {
      const double start = timer.list_us(1, 16, tile.rows, false);
      r.item_us = std::max(half - start - pass.back() * entries * (tokens / 2.0), 0.0) * r.teams / (entries * heads);
    }
  }
  r.cache_bytes_per_us = std::max(token_bytes / fastest, r.memory_bytes_per_us);
  say("partial states");
  const double start = timer.list_us(1, 16, 1, false), merged = timer.list_us(1, 16, 1, true);
  r.list_us              = std::max(merged - timer.plain_us(16), 0.0);
  const double no_states = timer.list_us(entries, tokens / 2, most_rows, false);
  const double states    = timer.list_us(entries, tokens / 2, most_rows, true) - no_states - (merged - start);
  const double bytes     = 2.0 * entries * most_rows * heads * (head_dim * sizeof(StateOf<T>) + sizeof(float));
  r.state_bytes_per_us   = states > 0 ? std::min(bytes / states, r.cache_bytes_per_us) : r.memory_bytes_per_us;
  return r;
}

void print_number(const char* name, double measured, double built_in) {
  std::printf("%-28s %12.4g %12.4g\n", name, measured, built_in);
}

void print_rates(const DeviceRates& measured, const DeviceRates& built_in) {
  std::printf("%-28s %12s %12s\n", "DeviceRates", "measured", "built in");
  print_number("memory_bytes_per_us", measured.memory_bytes_per_us, built_in.memory_bytes_per_us);
  print_number("cache_bytes_per_us", measured.cache_bytes_per_us, built_in.cache_bytes_per_us);
  print_number("cache_bytes", measured.cache_bytes, built_in.cache_bytes);
  print_number("state_bytes_per_us", measured.state_bytes_per_us, built_in.state_bytes_per_us);
  for (std::size_t i = 0; i < measured.tiles.size(); ++i)
    print_number(("tiles, " + std::to_string(measured.tiles[i].rows) + " rows, flops_per_us").c_str(),
                 measured.tiles[i].flops_per_us, built_in.tiles[i].flops_per_us);
  print_number("teams", measured.teams, built_in.teams);
  print_number("item_us", measured.item_us, built_in.item_us);
  print_number("list_us", measured.list_us, built_in.list_us);
}

/// The machine's built-in rates: those of a decoder that the library makes for it.
template <class T>
DeviceRates built_in_rates(const Exec& exec) {
  const Kokkos::View<T****, Kokkos::LayoutRight, Memory> pages("Pagoda::tune::pages", 1, 16, heads, head_dim);
  const Kokkos::View<int**, Kokkos::LayoutRight, Memory> table("Pagoda::tune::table", 1, 1);
  const Kokkos::View<int*, Memory> seq_lens("Pagoda::tune::seq_lens", 1);
  const PagedKV<T, Memory> kv{pages, pages, table, seq_lens};
  return PrefixDecoder<Exec>(exec, kv, {.num_q_heads = heads}).rates();
}

template <class T>
int run(bool small) {
  const Exec exec;
  const DeviceRates built_in = built_in_rates<T>(exec);
  std::unique_ptr<StreamReader<Exec>> reader;
  if (!small) reader = std::make_unique<StreamReader<Exec>>(exec, 0);
  const DeviceRates measured = measure_rates<T>(exec, reader.get(), built_in);
  std::printf("%s, %s, %s\n", Exec::name(), device_name(exec).c_str(), name_of(dtype_v<T>));
  print_rates(measured, built_in);
  std::printf("Pass measured numbers as PrefixOptions::rates, or to set_rates of a pool.\n");
  return 0;
}

constexpr const char* usage =
    "usage: pagoda-tune [--small]\n"
    "Measures the numbers of the cost model that decides where shared prefixes are read once (DeviceRates), with the\n"
    "generic kernel on the default device, and prints them beside the built-in ones. --small: runs everything once on "
    "a\n"
    "very small problem; the numbers then mean nothing.\n";

}  // namespace

}  // namespace pagoda::bench

int main(int argc, char** argv) {
  using namespace pagoda;
  bool small = false, help = false, wrong = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--small") == 0) {
      small = true;
    } else if (std::strcmp(argv[i], "--help") == 0) {
      help = true;
    } else if (std::strncmp(argv[i], "--kokkos", 8) != 0) {
      wrong = true;
    }
  }
  if (help || wrong) {
    std::fputs(bench::usage, help ? stdout : stderr);
    return help ? 0 : 2;
  }
  const Kokkos::ScopeGuard kokkos(argc, argv);
  try {
    int status       = 3;
    const DType type = bench::bench_type();
    pagoda::detail::by_type(type, [&]<class T>(T*) {
      if constexpr (!is_quantized_v<T> && !std::is_same_v<T, double>) status = bench::run<T>(small);
    });
    if (status == 3) std::fputs("pagoda-tune: the build has none of fp16, bf16 and fp32\n", stderr);
    return status;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "pagoda-tune: %s\n", error.what());
    return 1;
  }
}
