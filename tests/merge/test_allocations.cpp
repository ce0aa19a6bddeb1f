// SPDX-License-Identifier: Apache-2.0
#include "tests/support/launch_requests.hpp"
#include "tests/support/spaces.hpp"

#include <pagoda/kv_write.hpp>
#include <pagoda/merge.hpp>

namespace pagoda::test {
namespace {

template <class Space>
struct FirstCalls : testing::Test {};
TYPED_TEST_SUITE(FirstCalls, Spaces, Names);

/// A fresh instance, for which Kokkos has allocated nothing yet.
template <class Space>
Space fresh_instance() {
  const Space whole;
  return whole.concurrency() < 2 ? whole : Kokkos::Experimental::partition_space(whole, 1, 1)[0];
}

// Even the first call on an instance allocates nothing. On a GPU Kokkos itself does: there a call allocates no more
// than the first launch of an empty kernel on a fresh instance.
TYPED_TEST(FirstCalls, OfMergeAllocateNothing) {
  using Memory     = typename TypeParam::memory_space;
  const auto exec  = fresh_instance<TypeParam>();
  const int states = 3, dims = 70;
  const Kokkos::View<float****, Memory> outs("outs", states, 5, 4, dims);
  const Kokkos::View<float***, Memory> lses("lses", states, 5, 4);
  const Kokkos::View<float***, Memory> out("out", 5, 4, dims);
  const Kokkos::View<float**, Memory> lse("lse", 5, 4);
  Kokkos::deep_copy(outs, 2.0f);
  Kokkos::deep_copy(lses, 1.0f);
  Kokkos::fence();
  const bool on_host = std::is_same_v<Memory, Kokkos::HostSpace>;
  const long allowed = on_host ? 0 : requests_of_a_team_launch(fresh_instance<TypeParam>());
  long requests      = 0;
  {
    const FailingAllocations counting;
    pagoda::merge(exec, outs, lses, out, lse);
    requests = FailingAllocations::count();
  }
  exec.fence();
  EXPECT_LE(requests, allowed);
  const auto sums = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), lse);
  EXPECT_NEAR(sums(4, 3), 1 + std::log(3.0), 1e-5);
}

}  // namespace
}  // namespace pagoda::test
