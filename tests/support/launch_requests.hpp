// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/support/failing_allocations.hpp"

#include <Kokkos_Core.hpp>

#include <string>

/// Number of Kokkos' own calls of operator new in a launch, without labels. Kokkos 4 makes a handle of the space (40
/// bytes) for each team policy on OpenMP.
namespace pagoda::test {

struct EmptyKernel {
  template <class Place>
  KOKKOS_FUNCTION void operator()(const Place&) const {}
};

template <class Policy>
long requests_of_a_launch(const Policy& policy) {
  const std::string label = "a label too long to be kept in the string";
  const FailingAllocations counting;
  Kokkos::parallel_for(label,
                       Kokkos::Experimental::require(policy, Kokkos::Experimental::WorkItemProperty::HintLightWeight),
                       EmptyKernel());
  return FailingAllocations::count();
}

/// Includes the construction of the policy.
template <class Space>
long requests_of_a_team_launch(const Space& exec) {
  long made         = 0;
  const auto policy = [&] {
    const FailingAllocations counting;
    const Kokkos::TeamPolicy<Space> p(exec, 1, 1, 1);
    made = FailingAllocations::count();
    return p;
  }();
  return made + requests_of_a_launch(policy);
}

}  // namespace pagoda::test
