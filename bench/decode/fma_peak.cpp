// SPDX-License-Identifier: Apache-2.0
#include "bench/decode/fma_peak.hpp"

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <cstdint>

namespace pagoda::bench {

namespace {

constexpr std::int64_t rounds = 1 << 18;  // a millisecond: short enough to fit between other work
constexpr int chains          = 12;  // more than latency times issue width of any CPU of today, fewer than registers

#if defined(__GNUC__)
using Floats = float __attribute__((vector_size(64), aligned(64)));
using Halved = float __attribute__((vector_size(32), aligned(32)));
#endif

/// `rounds` times `chains` vectors. The numbers neither grow nor shrink.
template <class V>
[[gnu::always_inline]] inline float run(float one) {
  const V factor = V{} + one, term = V{} + (one - 1);
  V sums[chains];
  for (int i = 0; i < chains; ++i) sums[i] = V{} + static_cast<float>(i);
  for (std::int64_t r = 0; r < rounds; ++r)
    for (int i = 0; i < chains; ++i) sums[i] = sums[i] * factor + term;
  V all{};
  for (const V& s : sums) all += s;
  if constexpr (sizeof(V) == sizeof(float)) {
    return all;
  } else {
    return all[0];
  }
}

struct Loop {
  float (*body)(float);
  int lanes;
};

float plain(float one) { return run<float>(one); }
#if defined(__GNUC__) && defined(__x86_64__)
[[gnu::target("avx512f")]] float avx512(float one) { return run<Floats>(one); }
[[gnu::target("avx2,fma")]] float avx2(float one) { return run<Halved>(one); }
#elif defined(__GNUC__)
float vectors(float one) { return run<Halved>(one); }
#endif

Loop widest() {
#if defined(__GNUC__) && defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return {avx512, 16};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return {avx2, 8};
#elif defined(__GNUC__)
  return {vectors, 8};
#endif
  return {plain, 1};
}

}  // namespace

double peak_fmas_per_second() {
  using Exec = Kokkos::DefaultHostExecutionSpace;
  const Exec exec;
  const int threads = exec.concurrency();
  const Loop loop   = widest();
  // Each thread uses its own clock and its fastest round, so that waiting for other threads does not count.
  Kokkos::View<float*, Kokkos::HostSpace> ignored("Pagoda::bench::fma_results", static_cast<std::size_t>(threads));
  double rate = 0;
  Kokkos::parallel_reduce(
      "Pagoda::bench::fma_peak", Kokkos::RangePolicy<Exec>(exec, 0, threads),
      [=](int t, double& sum) {
        double least = 1;
        for (const Kokkos::Timer all; all.seconds() < 0.3;) {
          const Kokkos::Timer timer;
          ignored(t) += loop.body(1.0f + 0.0f * static_cast<float>(t));
          least = std::min(least, timer.seconds());
        }
        sum += static_cast<double>(rounds) * chains * loop.lanes / least;
      },
      rate);
  return rate;
}

}  // namespace pagoda::bench
