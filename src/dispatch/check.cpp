// SPDX-License-Identifier: Apache-2.0
#include <pagoda/check.hpp>
#include <pagoda/error.hpp>

#include "src/base/checks.hpp"
#include "src/base/spaces.hpp"
#include "src/dispatch/examine.hpp"

#include <limits>

namespace pagoda::detail {

namespace {

struct FirstFault {
  CacheRef kv;
  QueryCounts queries;
  KOKKOS_FUNCTION void operator()(int b, int& first) const {
    if (examine(kv, queries, b).fault != Fault::none && b < first) first = b;
  }
};

struct Examine {
  CacheRef kv;
  QueryCounts queries;
  int entry;
  Finding* finding;
  KOKKOS_FUNCTION void operator()(int) const { *finding = examine(kv, queries, entry); }
};

}  // namespace

template <class ExecutionSpace>
void check(const ExecutionSpace& exec, const CacheRef& kv, const QueryCounts& queries) {
  require_tables("pagoda::check", kv, kv.batch);
  int first = std::numeric_limits<int>::max();
  Kokkos::parallel_reduce("Pagoda::check", Kokkos::RangePolicy<ExecutionSpace>(exec, 0, kv.batch),
                          FirstFault{kv, queries}, Kokkos::Min<int>(first));
  if (first >= kv.batch) return;
  Kokkos::View<Finding, typename ExecutionSpace::memory_space> found(
      Kokkos::view_alloc(exec, Kokkos::WithoutInitializing, "Pagoda::check::finding"));
  Kokkos::parallel_for("Pagoda::check::finding", Kokkos::RangePolicy<ExecutionSpace>(exec, 0, 1),
                       Examine{kv, queries, first, found.data()});
  Finding f;
  Kokkos::deep_copy(exec, Kokkos::View<Finding, Kokkos::HostSpace, Kokkos::MemoryUnmanaged>(&f), found);
  exec.fence("Pagoda::check: the finding is read on the host");
  throw InvalidArgument(text_of("pagoda::check", f, first));
}

#define PAGODA_INSTANTIATE(Space) \
  template PAGODA_EXPORT void check<Space>(const Space&, const CacheRef&, const QueryCounts&);
PAGODA_FOR_EACH_SPACE(PAGODA_INSTANTIATE)
#undef PAGODA_INSTANTIATE

}  // namespace pagoda::detail
