// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bench/common/arena.hpp"
#include "bench/common/caches.hpp"
#include "bench/common/harness.hpp"
#include "bench/common/timing.hpp"
#include "bench/study/cases.hpp"

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

namespace pagoda::bench::study {

using Exec   = Kokkos::DefaultExecutionSpace;
using Memory = Exec::memory_space;
using Rows   = Kokkos::View<float***, Kokkos::LayoutRight, Memory>;  ///< (query token, head, dim)
using KV     = Caches<Exec, float>;
#if defined(KOKKOS_ENABLE_CUDA)
inline constexpr bool on_cuda = std::is_same_v<Exec, Kokkos::Cuda>;
#else
inline constexpr bool on_cuda = false;
#endif

/// State that the benchmarks of one process share.
struct Session {
  Exec exec;
  Floors<Exec> floors{exec};
  Arena<Exec> arena{exec};
};

/// The caches that a problem uses in turns, and one set of queries and outputs.
struct Problem {
  Problem(Session& session, const Case& what)
      : c(what),
        reader(session.floors.reader()),
        turns(KV::rotation_in(session.arena, what, reader.cache_bytes())),
        caches(make(session)) {
    fill(session.exec, q, query_from);
    session.exec.fence("Pagoda::bench::queries");
  }
  void poison(const Exec& exec) const { Kokkos::deep_copy(exec, out, std::numeric_limits<float>::quiet_NaN()); }

  Case c;
  StreamReader<Exec>& reader;  ///< before the arena, which takes the remaining memory
  Rotation turns;
  KV caches;
  Rows q{"Pagoda::bench::q", c.lengths.size(), 1, std::size_t(c.head_dim)};
  Rows out{"Pagoda::bench::out", c.lengths.size(), 1, std::size_t(c.head_dim)};

 private:
  KV make(Session& session) const {
    return {session.exec, c, session.arena.get<float>(KV::elements(c, turns.caches)), turns.caches};
  }
};

/// The figures of all kernels: time, bytes and the bare read.
inline Outcome beside_the_read(double seconds, std::size_t bytes, const Reading& floor, const std::string& backend) {
  const double us = seconds * 1e6, floor_us = floor.seconds * 1e6;
  return {seconds,
          {{"bytes", static_cast<double>(bytes)},
           {"us", us},
           {"floor_us", floor_us},
           {"ratio", us / floor_us},
           {"gb_per_s", static_cast<double>(bytes) / seconds * 1e-9},
           {"pct_of_read", 100 * floor_us / us}},
          "backend: " + backend + "; floor: " + floor.shape,
          {}};
}

/// Seconds of work(i), i = 0, 1, ..., by the host's clock from fence to fence, for work that a graph cannot capture.
/// The median; on a CPU the fastest, because other work only adds time.
template <class Do>
double seconds_by_the_clock(const Exec& exec, const Do& work, double most_seconds = 1, int least = 3, int most = 50) {
  std::vector<double> x;
  const Kokkos::Timer all;
  for (int i = -1; i < least || (i < most && all.seconds() < most_seconds); ++i) {
    exec.fence("Pagoda::bench::sample");
    const Kokkos::Timer timer;
    work(i + 1);
    exec.fence("Pagoda::bench::sample");
    if (i >= 0) x.push_back(timer.seconds());
  }
  constexpr bool on_host = std::is_same_v<Memory, Kokkos::HostSpace>;
  std::sort(x.begin(), x.end());
  return x[on_host ? 0 : x.size() / 2];
}

}  // namespace pagoda::bench::study
