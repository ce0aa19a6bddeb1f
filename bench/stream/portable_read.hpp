// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

/// The bare read for CPUs and for GPUs other than NVIDIA's.
namespace pagoda::bench::portable {

struct alignas(16) Word {
  std::uint64_t low, high;
};

/// Host: every thread reads its own part as `streams` parallel runs of whole cache lines, which keeps several
/// prefetchers busy.
template <int Streams>
std::uint64_t fold_piece(const std::uint64_t* p, std::size_t n) {
  constexpr std::size_t line = 8;
  const std::size_t run      = n / (Streams * line) * line;
  std::uint64_t fold[Streams][line]{};
  for (std::size_t i = 0; i < run; i += line)
    for (int s = 0; s < Streams; ++s)
      for (std::size_t j = 0; j < line; ++j) fold[s][j] ^= p[s * run + i + j];
  for (std::size_t i = Streams * run; i < n; ++i) fold[0][0] ^= p[i];
  std::uint64_t all = 0;
  for (const auto& f : fold)
    for (const std::uint64_t x : f) all ^= x;
  return all;
}

template <class ExecutionSpace, int Streams>
struct HostRead {
  const std::uint64_t* data;
  std::size_t words;  // 8 bytes each
  int pieces;
  Kokkos::View<std::uint64_t*, typename ExecutionSpace::memory_space> folds;

  void operator()(int t) const {
    const std::size_t begin = words * t / pieces, end = words * (t + 1) / pieces;
    folds(t) = fold_piece<Streams>(data + begin, end - begin);
  }
};

template <int Streams, class ExecutionSpace, class Folds>
void host_read(const ExecutionSpace& exec, const std::byte* data, std::size_t bytes, const Folds& folds) {
  const int pieces = exec.concurrency();
  Kokkos::parallel_for("Pagoda::bench::stream_read", Kokkos::RangePolicy<ExecutionSpace>(exec, 0, pieces),
                       HostRead<ExecutionSpace, Streams>{reinterpret_cast<const std::uint64_t*>(data),
                                                         bytes / sizeof(std::uint64_t), pieces, folds});
}

/// Bytes in a row.
using Run = std::span<const std::byte>;

/// Host: every thread reads its own part of the runs, one after another: a word of each cache line, which brings the
/// whole line. (Loads of all words took 1.4 times as long in code without AVX-512.) A hardware prefetcher stops at the
/// end of a page of memory, so the first line of each page of a later run is prefetched.
template <class ExecutionSpace, class Folds>
void host_read_runs(const ExecutionSpace& exec, std::span<const Run> runs, const Folds& folds) {
  const int pieces = exec.concurrency();
  Kokkos::parallel_for("Pagoda::bench::read_runs", Kokkos::RangePolicy<ExecutionSpace>(exec, 0, pieces),
                       [=](const int t) {
                         constexpr std::size_t line = 64, memory_page = 4096, bytes_ahead = 32768;
                         const std::size_t end = runs.size() * (t + 1) / pieces;
                         std::uint64_t even = 0, odd = 0;
                         for (std::size_t i = runs.size() * t / pieces; i < end; ++i) {
                           const Run& run   = runs[i];
                           const Run& later = runs[std::min(i + bytes_ahead / run.size() + 1, end - 1)];
                           for (std::size_t at = 0; at < later.size(); at += memory_page)
                             __builtin_prefetch(later.data() + at);
                           const auto* const words             = reinterpret_cast<const std::uint64_t*>(run.data());
                           constexpr std::size_t words_of_line = line / sizeof(std::uint64_t);
                           const std::size_t n                 = run.size() / sizeof(std::uint64_t);
                           for (std::size_t w = 0; w < n; w += 2 * words_of_line) {
                             even ^= words[w];
                             if (w + words_of_line < n) odd ^= words[w + words_of_line];
                           }
                         }
                         folds(t) = even ^ odd;
                       });
}

/// Device: interleaved over all threads, loads of 16 bytes, four in flight.
template <class ExecutionSpace>
struct DeviceRead {
  const Word* data;
  std::size_t words, threads;
  Kokkos::View<std::uint64_t*, typename ExecutionSpace::memory_space> folds;

  KOKKOS_FUNCTION void operator()(std::size_t t) const {
    std::uint64_t low = 0, high = 0;
    std::size_t i = t;
    for (; i + 3 * threads < words; i += 4 * threads) {
      const Word a = data[i], b = data[i + threads], c = data[i + 2 * threads], d = data[i + 3 * threads];
      low ^= a.low ^ b.low ^ c.low ^ d.low;
      high ^= a.high ^ b.high ^ c.high ^ d.high;
    }
    for (; i < words; i += threads) low ^= data[i].low, high ^= data[i].high;
    if (low == 0x9e3779b97f4a7c15u && high == 0xbf58476d1ce4e5b9u) folds(0) = low;  // once in 2^128
  }
};

template <class ExecutionSpace, class Folds>
void device_read(const ExecutionSpace& exec, const std::byte* data, std::size_t bytes, const Folds& folds) {
  const auto threads = static_cast<std::size_t>(exec.concurrency());
  Kokkos::parallel_for(
      "Pagoda::bench::stream_read", Kokkos::RangePolicy<ExecutionSpace, std::size_t>(exec, 0, threads),
      DeviceRead<ExecutionSpace>{reinterpret_cast<const Word*>(data), bytes / sizeof(Word), threads, folds});
}

}  // namespace pagoda::bench::portable
