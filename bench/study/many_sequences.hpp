// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bench/common/verify.hpp"
#include "bench/study/session.hpp"

#include <pagoda/decode.hpp>

#include <Kokkos_Core.hpp>

#include <cstddef>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace pagoda::bench::study {

/// K4: many sequences, either one call each as in the study, with or without its copy of the block table before each
/// call, or one call for all. Caches are used in turns, so every pass is cold. The calls of a pass are timed by the
/// host's clock, as in the study; the single call like any other decode.
class ManySequences {
 public:
  ManySequences(Session& session, int tokens, int page_size)
      : session_(session), p_(session, problem(num_sequences, tokens, page_size)) {}

  Outcome run(Work work) {
    const Reading floor = session_.floors.of(p_.c.bytes(), p_.turns.calls, session_.arena.memory());
    Outcome o;
    p_.caches.with(0, [&](const auto& first) {
      using Layout = std::decay_t<decltype(first)>;
      if (work == Work::batched) {
        o = batched<Layout>(floor);
      } else if (work == Work::serial) {
        o = serial<Layout>(floor);
      } else if constexpr (std::is_same_v<Layout, KV::Paged>) {
        o = serial_copy(floor);
      }
    });
    return o;
  }

 private:
  /// Queries or outputs of one sequence.
  static auto row(const Rows& rows, int b) {
    return Kokkos::subview(rows, std::make_pair(b, b + 1), Kokkos::ALL, Kokkos::ALL);
  }

  /// Index of sequence b of cache i among the sequences of all caches.
  static std::size_t place(int i, int b) {
    return static_cast<std::size_t>(i) * num_sequences + static_cast<std::size_t>(b);
  }

  template <class Layout>
  Outcome batched(const Reading& floor) {
    const auto plan =
        pagoda::plan(session_.exec, p_.caches.template as<Layout>(0), {.num_q_heads = 1, .backend = "generic"});
    const auto call = [&](int i) {
      pagoda::decode(session_.exec, plan, p_.q, p_.caches.template as<Layout>(i), p_.out);
    };
    return finish(seconds_of_call(session_.exec, p_.turns, p_.reader, call), floor, plan.backend(), call);
  }

  template <class Layout>
  Outcome serial(const Reading& floor) {
    const Kokkos::View<int*, Memory> ids("Pagoda::bench::ids", num_sequences);
    const auto ids_here = Kokkos::create_mirror_view(ids);
    for (int b = 0; b < num_sequences; ++b) ids_here(b) = b;
    Kokkos::deep_copy(session_.exec, ids, ids_here);
    std::vector<Layout> all;  // each sequence of each cache alone
    for (int i = 0; i < p_.turns.caches; ++i)
      for (int b = 0; b < num_sequences; ++b) {
        all.push_back(p_.caches.template as<Layout>(i));
        all.back().sequence_ids = Kokkos::subview(ids, std::make_pair(b, b + 1));
      }
    const auto plan = pagoda::plan(session_.exec, all[0], {.num_q_heads = 1, .backend = "generic"});
    const auto pass = [&](int i) {
      for (int b = 0; b < num_sequences; ++b)
        pagoda::decode(session_.exec, plan, row(p_.q, b), all[place(i, b)], row(p_.out, b));
    };
    return finish(by_the_clock(pass), floor, plan.backend(), pass);
  }

  /// Before each call a blocking copy brings its block table to the device.
  Outcome serial_copy(const Reading& floor) {
    using Table     = Kokkos::View<int**, Kokkos::LayoutRight, Memory>;
    const auto kv0  = p_.caches.as<KV::Paged>(0);
    const int pages = kv0.block_table.extent_int(1);
    const Table here_now("Pagoda::bench::table_of_one", 1, pages);
    std::vector<KV::Paged> all;
    std::vector<decltype(Kokkos::create_mirror_view(KV::Table()))> tables;
    for (int i = 0; i < p_.turns.caches; ++i) {
      const auto kv = p_.caches.as<KV::Paged>(i);
      const KV::Table copy("Pagoda::bench::tables", num_sequences, pages);
      Kokkos::deep_copy(session_.exec, copy, kv.block_table);
      tables.push_back(Kokkos::create_mirror_view(copy));
      Kokkos::deep_copy(session_.exec, tables.back(), copy);
      session_.exec.fence("Pagoda::bench::tables");
      for (int b = 0; b < num_sequences; ++b)
        all.emplace_back(kv.k, kv.v, here_now, Kokkos::subview(kv.seq_lens, std::make_pair(b, b + 1)));
    }
    const auto plan = pagoda::plan(session_.exec, all[0], {.num_q_heads = 1, .backend = "generic"});
    const auto pass = [&](int i) {
      for (int b = 0; b < num_sequences; ++b) {
        const auto one = std::make_pair(b, b + 1);
        Kokkos::deep_copy(session_.exec, here_now,
                          Kokkos::subview(tables[static_cast<std::size_t>(i)], one, Kokkos::ALL));
        session_.exec.fence("Pagoda::bench::table_copied");
        pagoda::decode(session_.exec, plan, row(p_.q, b), all[place(i, b)], row(p_.out, b));
      }
    };
    return finish(by_the_clock(pass), floor, plan.backend(), pass);
  }

  template <class Pass>
  double by_the_clock(const Pass& pass) const {
    return seconds_by_the_clock(session_.exec, [&](int i) { pass(i % p_.turns.caches); });
  }

  /// pass(0) decodes cache 0 into `out`, which is then compared with the reference.
  template <class Pass>
  Outcome finish(double seconds, const Reading& floor, const std::string& backend, const Pass& pass) {
    Outcome o = beside_the_read(seconds, p_.c.bytes(), floor, backend);
    p_.poison(session_.exec);
    pass(0);
    session_.exec.fence("Pagoda::bench::checked_decode");
    int rows_checked = 0;
    o.fault          = find_fault(p_.c, p_.caches, Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), p_.q),
                                  Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), p_.out), rows_checked);
    o.counters["rows_checked"] = rows_checked;
    return o;
  }

  Session& session_;
  Problem p_;
};

}  // namespace pagoda::bench::study
