// SPDX-License-Identifier: Apache-2.0
#include "bench/study/capacity.hpp"
#include "bench/study/cases.hpp"
#include "bench/study/many_sequences.hpp"
#include "bench/study/one_head.hpp"
#include "bench/study/session.hpp"

#include <memory>

namespace pagoda::bench::study {

namespace {

Outcome measure(Session& session, std::unique_ptr<OneHead>& one_head, const StudyCase& c) {
  switch (c.work) {
    case Work::capacity:
      one_head.reset();
      return capacity(session.exec, c);
    case Work::serial_copy:
    case Work::serial:
    case Work::batched:
      one_head.reset();  // frees its part of the arena for other cases
      return ManySequences(session, c.tokens, c.page_size).run(c.work);
    default:
      if (!one_head || one_head->tokens() != c.tokens) {
        one_head.reset();
        one_head = std::make_unique<OneHead>(session, c.tokens);
      }
      return one_head->run(c);
  }
}

int run_all(Harness& harness) {
  Session session;
  std::unique_ptr<OneHead> one_head;
  constexpr bool on_host = std::is_same_v<Memory, Kokkos::HostSpace>;
  for (const StudyCase& c : on_host ? host_cases() : device_cases(on_cuda))
    harness.add(c.name(), [&session, &one_head, c] { return measure(session, one_head, c); });
  return harness.run();
}

}  // namespace

}  // namespace pagoda::bench::study

/// pagoda_bench_study: the experiments of the A40 study, each beside a bare read.
int main(int argc, char** argv) {
  return pagoda::bench::main_of("pagoda_bench_study", argc, argv, pagoda::bench::study::run_all);
}
