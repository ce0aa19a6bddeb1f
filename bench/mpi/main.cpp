// SPDX-License-Identifier: Apache-2.0
#include "bench/common/arena.hpp"
#include "bench/stream/gpu_space.hpp"
#include "bench/stream/stream_read.hpp"

#include <pagoda/mpi.hpp>
#include <pagoda/pagoda.hpp>

#include <mpi.h>
#include <Kokkos_Core.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <utility>
#include <vector>

/// A sequence of N tokens over the ranks: a step of all ranks, beside the decode of a rank's shard alone, a step
/// without tokens (what the collective and the merge cost), and a bare read of the shard's bytes. Steps by NCCL and the
/// decode are also timed in CUDA graphs of several, as the layers of a model. Kokkos gives each rank of a host a GPU of
/// its own.
namespace pagoda::bench {
namespace {

using Exec   = Kokkos::DefaultExecutionSpace;
using T      = half_t;
using Memory = Exec::memory_space;

constexpr int kv_heads = 8, q_heads = 32, dim = 128, page_size = 16;

/// Median over `samples` samples of the slowest rank. The ranks begin each together.
template <class Sample>
double median_of(int samples, const Sample& sample) {
  std::vector<double> all;
  for (int i = -2; i < samples; ++i) {
    MPI_Barrier(MPI_COMM_WORLD);
    double seconds = sample();
    MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    if (i >= 0) all.push_back(seconds);
  }
  std::nth_element(all.begin(), all.begin() + samples / 2, all.end());
  return all[static_cast<std::size_t>(samples) / 2];
}

/// Seconds of a call between two fences.
template <class Call>
double seconds_of(const Exec& exec, int samples, const Call& call) {
  exec.fence("Pagoda::bench::sample");
  return median_of(samples, [&] {
    const double begin = MPI_Wtime();
    call();
    exec.fence("Pagoda::bench::sample");
    return MPI_Wtime() - begin;
  });
}

#if defined(PAGODA_BENCH_GPU)
constexpr int calls_in_graph = 8;
/// Seconds of a call in a graph of calls_in_graph.
template <class Call>
double seconds_in_graph(const Exec& exec, int samples, const Call& call) {
  exec.fence("Pagoda::bench::sample");
  const gpu::Graph graph(gpu::stream_of(exec), [&] {
    for (int i = 0; i < calls_in_graph; ++i) call();
  });
  return median_of(samples, [&] { return graph.seconds(); }) / calls_in_graph;
}
#endif

struct FillPages {
  Kokkos::View<T****, Kokkos::LayoutRight, Memory> pages;
  std::uint64_t first;
  KOKKOS_FUNCTION void operator()(std::size_t i) const { pages.data()[i] = T(arena_number(first + i)); }
};

void fill(const Exec& exec, const Kokkos::View<T****, Kokkos::LayoutRight, Memory>& pages, std::uint64_t first) {
  Kokkos::parallel_for("Pagoda::bench::fill",
                       Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::size_t>>(exec, 0, pages.size()),
                       FillPages{pages, first});
}

struct FillTable {
  Kokkos::View<int**, Kokkos::LayoutRight, Memory> table;
  int pages;
  KOKKOS_FUNCTION void operator()(int i) const {
    table(0, i) = static_cast<int>((std::int64_t(i) * 7919 + 1) % pages);  // shuffled, if 7919 is no factor of pages
  }
};

void measure(std::int64_t tokens, int samples) {
  int rank = 0, ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const Exec exec;
  // Shares of whole pages; the first ranks have one page more.
  const std::int64_t all_pages = (tokens + page_size - 1) / page_size;
  const int pages              = std::max(1, static_cast<int>(all_pages / ranks + (rank < all_pages % ranks ? 1 : 0)));
  const auto cache             = make_paged_cache<T>(
      exec, {.num_pages = pages, .page_size = page_size, .num_kv_heads = kv_heads, .head_dim = dim});
  fill(exec, cache.k, 0);
  fill(exec, cache.v, std::uint64_t(1) << 50);
  const Kokkos::View<int**, Kokkos::LayoutRight, Memory> table("table", 1, pages);
  Kokkos::parallel_for("Pagoda::bench::table", Kokkos::RangePolicy<Exec>(exec, 0, pages), FillTable{table, pages});
  const Kokkos::View<int*, Memory> lengths("lengths", 1), no_tokens("no_tokens", 1);
  Kokkos::deep_copy(exec, lengths, pages * page_size);
  const Kokkos::View<T***, Kokkos::LayoutRight, Memory> q("q", 1, q_heads, dim), out("out", 1, q_heads, dim);
  const Kokkos::View<float**, Kokkos::LayoutRight, Memory> lse("lse", 1, q_heads);
  Kokkos::deep_copy(exec, q, T(0.1f));
  exec.fence();

  const PagedKV kv{cache.k, cache.v, table, lengths}, empty{cache.k, cache.v, table, no_tokens};
  const auto plan    = pagoda::plan(exec, kv, {.num_q_heads = q_heads});
  const double local = seconds_of(exec, samples, [&] { pagoda::decode(exec, plan, q, kv, out, lse); });

  const auto bytes = static_cast<std::size_t>(pages) * page_size * kv_heads * dim * 2 * sizeof(T);
  double read      = 0;
  {
    StreamReader<Exec> reader(exec, std::min(bytes, std::size_t(4) << 30));
    MPI_Barrier(MPI_COMM_WORLD);
    read = reader.read(bytes).seconds;
  }
  MPI_Allreduce(MPI_IN_PLACE, &read, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  if (rank == 0)
    std::printf("%lld tokens on %d ranks, %s, backend %s: read %.1f us, decode of the shard %.1f us\n",
                static_cast<long long>(tokens), ranks, Exec::name(), plan.backend().c_str(), read * 1e6, local * 1e6);
#if defined(PAGODA_BENCH_GPU)
  const double local_in_graph = seconds_in_graph(exec, samples, [&] { pagoda::decode(exec, plan, q, kv, out, lse); });
  if (rank == 0)
    std::printf("  in a graph of %d: decode of the shard %.1f us, read / decode %.1f%%\n", calls_in_graph,
                local_in_graph * 1e6, 100 * read / local_in_graph);
#endif

  for (const auto heads : {mpi::MergedHeads::all, mpi::MergedHeads::own}) {
    const bool own = heads == mpi::MergedHeads::own;
    if (own && q_heads % ranks != 0) continue;
    struct Way {
      bool gpu_aware;
      mpi::Transport transport;
    };
    for (const Way way : {Way{false, mpi::Transport::mpi}, {true, mpi::Transport::mpi}, {true, mpi::Transport::nccl}}) {
      const bool gpu_aware = way.gpu_aware, nccl = way.transport == mpi::Transport::nccl;
      if (nccl && (!mpi::has_nccl() || Kokkos::num_devices() < ranks)) continue;
      if (gpu_aware && !nccl &&
          mpi::ContextParallel<Exec>(exec, MPI_COMM_WORLD,
                                     {.num_q_heads = q_heads, .head_dim_v = dim, .max_query_tokens = 1})
                  .gpu_aware() == false)
        continue;  // MPI does not accept device memory
      mpi::ContextParallel<Exec> parallel(exec, MPI_COMM_WORLD,
                                          {.num_q_heads      = q_heads,
                                           .head_dim_v       = dim,
                                           .max_query_tokens = 1,
                                           .merged_heads     = heads,
                                           .gpu_aware        = gpu_aware,
                                           .transport        = way.transport});
      const int mine = own ? q_heads / ranks : q_heads;
      const Kokkos::View<T***, Kokkos::LayoutRight, Memory> merged("merged", 1, mine, dim);
      const Kokkos::View<float**, Kokkos::LayoutRight, Memory> merged_lse("merged_lse", 1, mine);
      const auto step_over = [&](const auto& shard) {
        return seconds_of(exec, samples, [&] { parallel.decode(exec, plan, q, shard, merged, merged_lse); });
      };
      const double step = step_over(kv), without_tokens = step_over(empty);
      if (rank == 0)
        std::printf(
            "  %s heads, %s, messages of %zu bytes in %s memory: step %.1f us, %.1f us beyond the decode; a step "
            "without tokens %.1f us; read / step %.1f%%\n",
            own ? "own" : "all", nccl ? "NCCL" : "MPI", parallel.message_bytes(), gpu_aware ? "device" : "host",
            step * 1e6, (step - local) * 1e6, without_tokens * 1e6, 100 * read / step);
#if defined(PAGODA_BENCH_GPU)
      if (!nccl) continue;
      const double in_graph =
          seconds_in_graph(exec, samples, [&] { parallel.decode(exec, plan, q, kv, merged, merged_lse); });
      const double empty_in_graph =
          seconds_in_graph(exec, samples, [&] { parallel.decode(exec, plan, q, empty, merged, merged_lse); });
      if (rank == 0)
        std::printf("  in a graph of %d: step %.1f us, a step without tokens %.1f us; read / step %.1f%%\n",
                    calls_in_graph, in_graph * 1e6, empty_in_graph * 1e6, 100 * read / in_graph);
#endif
    }
  }
}

}  // namespace
}  // namespace pagoda::bench

/// pagoda_bench_mpi [TOKENS...]: under mpirun; by default 1M and 4M tokens.
int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  {
    const Kokkos::ScopeGuard kokkos(argc, argv);
    std::vector<std::int64_t> all;
    for (int i = 1; i < argc; ++i) all.push_back(std::strtoll(argv[i], nullptr, 10));
    if (all.empty()) all = {std::int64_t(1) << 20, std::int64_t(1) << 22};
    try {
      for (const std::int64_t tokens : all) {
        if (tokens < 1 || tokens > std::int64_t(1) << 30)
          throw std::invalid_argument("usage: mpirun pagoda_bench_mpi [TOKENS...]; allowed: 1 to 2^30 tokens");
        pagoda::bench::measure(tokens, 31);
      }
    } catch (const std::exception& error) {
      std::fprintf(stderr, "pagoda_bench_mpi: %s\n", error.what());
      MPI_Abort(MPI_COMM_WORLD, 1);  // other ranks may be in a collective
    }
  }
  MPI_Finalize();
  return EXIT_SUCCESS;
}
