// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bench/baseline/three_kernels.hpp"
#include "bench/study/session.hpp"

#if defined(KOKKOS_ENABLE_CUDA)
#include "bench/baseline/cuda_three_kernels_of_views.hpp"
#endif

#include <pagoda/decode.hpp>
#include <pagoda/merge.hpp>
#include <pagoda/reference.hpp>

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace pagoda::bench::study {

/// K1 and K2: one sequence of one head, by every kernel. Data that is slow to make (random caches, their copy on the
/// host, the float64 result) is shared by all cases of a length.
class OneHead {
 public:
  using Flat     = Kokkos::View<float*, Memory>;
  using HostFlat = Kokkos::View<float*, Kokkos::HostSpace>;
  using Layout   = KV::Contiguous;

  OneHead(Session& session, int tokens)
      : session_(session), p_(session, problem(1, tokens, 0)), elements_(std::size_t(tokens) * p_.c.head_dim) {
    const Layout& kv = cache(0);
    k_               = HostFlat(Kokkos::view_alloc(Kokkos::WithoutInitializing, "Pagoda::bench::host_keys"), elements_);
    v_           = HostFlat(Kokkos::view_alloc(Kokkos::WithoutInitializing, "Pagoda::bench::host_values"), elements_);
    q_           = HostFlat("Pagoda::bench::host_query", std::size_t(p_.c.head_dim));
    using Source = Kokkos::View<const float*, Memory, Kokkos::MemoryUnmanaged>;
    Kokkos::deep_copy(k_, Source(kv.k.data(), elements_));
    Kokkos::deep_copy(v_, Source(kv.v.data(), elements_));
    Kokkos::deep_copy(q_, Source(p_.q.data(), q_.extent(0)));
  }

  int tokens() const { return p_.c.longest(); }

  Outcome run(const StudyCase& c) {
    switch (c.work) {
      case Work::flash:
        return flash("generic");
      case Work::three_kernels:
        return three_kernels<ThreeKernels<Exec>>("generic");
#if defined(KOKKOS_ENABLE_CUDA)
      case Work::cuda_flash:
        return flash("tuned");
      case Work::cuda_three_kernels:
        return three_kernels<CudaThreeKernels>("tuned");
      case Work::cuda_splits:
        return splits(c.splits, "tuned");
#endif
      case Work::cpu_reference:
        return cpu_reference();
      case Work::flash_end_to_end:
        return end_to_end([&](const Layout& kv) {
          return [this, kv, plan = plan_for(kv, "generic")] { pagoda::decode(session_.exec, plan, p_.q, kv, p_.out); };
        });
      case Work::three_kernels_end_to_end:
        return end_to_end([&](const Layout& kv) {
          return [this, kv, baseline = ThreeKernels<Exec>(session_.exec, 1, tokens())] { baseline(p_.q, kv, p_.out); };
        });
      default:
        return splits(c.splits, "generic");
    }
  }

 private:
  const Layout& cache(int i) const { return p_.caches.as<Layout>(i); }
  Plan<Exec> plan_for(const Layout& kv, const char* backend) const {
    return plan(session_.exec, kv, {.num_q_heads = 1, .backend = backend});
  }

  template <class Call>
  Outcome kernel(const Call& call, double tolerances, const char* backend) {
    return finish(seconds_of_call(session_.exec, p_.turns, p_.reader, call), call, tolerances, backend);
  }
  template <class Call>
  Outcome finish(double seconds, const Call& call, double tolerances, const char* backend) {
    Outcome o = beside_the_read(seconds, p_.c.bytes(),
                                session_.floors.of(p_.c.bytes(), p_.turns.calls, session_.arena.memory()), backend);
    p_.poison(session_.exec);
    call(0);
    check(o, tolerances);
    return o;
  }

  Outcome flash(const char* backend) {
    const auto plan = plan_for(cache(0), backend);
    return kernel([&](int i) { pagoda::decode(session_.exec, plan, p_.q, cache(i), p_.out); }, 1, backend);
  }

  /// Its rounding error grows with the length, as each sum is one chain over all tokens, so its tolerance is wide. Not
  /// in a graph: Kokkos copies the arguments of large kernels to a GPU in a way that a graph cannot capture. Enough
  /// calls run between two fences that the fences do not count.
  template <class Kernels>
  Outcome three_kernels(const char* backend) {
    const Kernels baseline(session_.exec, 1, tokens());
    const auto call   = [&](int i) { baseline(p_.q, cache(i), p_.out); };
    const double once = seconds_by_the_clock(session_.exec, [&](int) { call(0); }, 0, 1);
    const int calls   = std::clamp(static_cast<int>(5e-3 / once), 1, 64);
    const double all  = seconds_by_the_clock(session_.exec, [&](int i) {
      for (int j = 0; j < calls; ++j) call((i * calls + j + 1) % p_.turns.caches);  // cache 0 may be warm
    });
    return finish(all / calls, call, baseline_tolerances, backend);
  }

  /// The sequence as n batch entries, which are then merged: two launches, like the study's. The plan gets a small
  /// max_seq_len (which only tunes), so it does not split the entries; on a CPU entries beyond 4096 tokens are split
  /// all the same.
  Outcome splits(int n, const char* backend) {
    const int each = tokens() / n, dim = p_.c.head_dim;
    pagoda::detail::require(each * n == tokens(), "T = ", tokens(), " cannot be split into ", n, " equal parts");
    using Pages = Kokkos::View<const float****, Kokkos::LayoutRight, Memory, Kokkos::MemoryUnmanaged>;
    const Kokkos::View<int*, Memory> lengths("Pagoda::bench::lengths", n);
    Kokkos::deep_copy(session_.exec, lengths, each);
    const auto cut = [&](int i) {
      const Layout& kv = cache(i);
      return Layout(Pages(kv.k.data(), n, each, 1, dim), Pages(kv.v.data(), n, each, 1, dim), lengths);
    };
    const Rows q("Pagoda::bench::q", n, 1, dim), parts("Pagoda::bench::parts", n, 1, dim);
    const Kokkos::View<float**, Kokkos::LayoutRight, Memory> lse("Pagoda::bench::lse", n, 1);
    for (int i = 0; i < n; ++i) {
      const auto row = std::make_pair(i, i + 1);
      Kokkos::deep_copy(session_.exec, Kokkos::subview(q, row, Kokkos::ALL, Kokkos::ALL), p_.q);
    }
    const Kokkos::View<float****, Kokkos::LayoutRight, Memory, Kokkos::MemoryUnmanaged> outs(parts.data(), n, 1, 1,
                                                                                             dim);
    const Kokkos::View<float***, Kokkos::LayoutRight, Memory, Kokkos::MemoryUnmanaged> lses(lse.data(), n, 1, 1);
    const Kokkos::View<float**, Kokkos::LayoutRight, Memory> merged_lse("Pagoda::bench::merged_lse", 1, 1);
    const auto plan = pagoda::plan(session_.exec, cut(0), {.num_q_heads = 1, .max_seq_len = 1, .backend = backend});
    std::vector<Layout> caches;
    caches.reserve(static_cast<std::size_t>(p_.turns.caches));
    for (int i = 0; i < p_.turns.caches; ++i) caches.push_back(cut(i));
    return kernel(
        [&](int i) {
          pagoda::decode(session_.exec, plan, q, caches[static_cast<std::size_t>(i)], parts, lse);
          pagoda::merge(session_.exec, outs, lses, p_.out, merged_lse);
        },
        untuned_tolerances, backend);
  }

  /// End to end: copies from pageable host memory to the device, attention, and the copy back. make(kv) returns the
  /// function to call.
  template <class Make>
  Outcome end_to_end(const Make& make) {
    const Exec& exec = session_.exec;
    const Flat k(Kokkos::view_alloc(exec, Kokkos::WithoutInitializing, "Pagoda::bench::keys"), elements_);
    const Flat v(Kokkos::view_alloc(exec, Kokkos::WithoutInitializing, "Pagoda::bench::values"), elements_);
    using Pages   = Kokkos::View<const float****, Kokkos::LayoutRight, Memory, Kokkos::MemoryUnmanaged>;
    const int dim = p_.c.head_dim;
    const Kokkos::View<int*, Memory> lengths("Pagoda::bench::lengths", 1);
    Kokkos::deep_copy(exec, lengths, tokens());
    const Layout kv(Pages(k.data(), 1, tokens(), 1, dim), Pages(v.data(), 1, tokens(), 1, dim), lengths);
    const auto attend = make(kv);
    const Flat query(p_.q.data(), q_.extent(0)), output(p_.out.data(), q_.extent(0));
    const HostFlat result("Pagoda::bench::host_output", q_.extent(0));
    const auto to_device = [&] {
      Kokkos::deep_copy(exec, k, k_);
      Kokkos::deep_copy(exec, v, v_);
      Kokkos::deep_copy(exec, query, q_);
    };
    p_.poison(exec);
    const double s            = seconds_by_the_clock(exec, [&](int) {
      to_device();
      attend();
      Kokkos::deep_copy(exec, result, output);
    });
    const double transfer     = seconds_by_the_clock(exec, [&](int) {
      to_device();
      Kokkos::deep_copy(exec, result, output);
    });
    Outcome o                 = beside_the_read(s, p_.c.bytes(),
                                                session_.floors.of(p_.c.bytes(), p_.turns.calls, session_.arena.memory()), "generic");
    o.counters["transfer_us"] = transfer * 1e6;
    check(o, baseline_tolerances);
    return o;
  }

  Outcome cpu_reference() {
    double least = std::numeric_limits<double>::infinity();
    const Kokkos::Timer all;
    for (int i = 0; i < 1 || (i < 5 && all.seconds() < 0.5); ++i) {
      const Kokkos::Timer timer;
      right_ = attend();
      least  = std::min(least, timer.seconds());
    }
    return {least,
            {{"bytes", static_cast<double>(p_.c.bytes())},
             {"us", least * 1e6},
             {"gb_per_s", static_cast<double>(p_.c.bytes()) / least * 1e-9}},
            "backend: generic; one core, float64",
            {}};
  }

  reference::Row attend() const {
    const auto dim  = static_cast<std::size_t>(p_.c.head_dim);
    const auto read = [dim](const HostFlat& all, int token, std::span<double> row) {
      for (std::size_t d = 0; d < dim; ++d)
        row[d] = static_cast<double>(all(static_cast<std::size_t>(token) * dim + d));
    };
    std::vector<double> query(dim);
    read(q_, 0, query);
    reference::RowOptions options;
    options.softmax_scale = 1 / std::sqrt(static_cast<double>(dim));
    return reference::attend(
        query, tokens(), tokens() - 1, p_.c.head_dim, [&](int t, std::span<double> row) { read(k_, t, row); },
        [&](int t, std::span<double> row) { read(v_, t, row); }, options);
  }

  /// Compares `out`, the result of cache 0, with the reference.
  void check(Outcome& o, double tolerances) {
    if (!right_) right_ = attend();
    const auto out = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), p_.out);
    double square  = 0;
    for (int d = 0; d < p_.c.head_dim; ++d) square += std::pow(static_cast<double>(out(0, 0, d)) - right_->out[d], 2);
    const double allowed              = reference::tolerance(*right_, DType::fp32, DType::fp32, DType::fp32);
    const double error                = std::sqrt(square) / right_->norm / allowed;
    o.counters["error_in_tolerances"] = error;
    if (!(error <= tolerances)) o.fault = pagoda::detail::concat("the output is off by ", error, " tolerances");
  }

  static constexpr double baseline_tolerances = 1000;
  static constexpr double untuned_tolerances  = 4;  ///< splits longer than the library's have a larger rounding error

  Session& session_;
  Problem p_;
  std::size_t elements_;
  HostFlat k_, v_, q_;
  std::optional<reference::Row> right_;
};

}  // namespace pagoda::bench::study
