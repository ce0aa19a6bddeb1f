// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/tuned_backend.hpp"
#include "src/base/spaces.hpp"
#include "src/dispatch/generic.hpp"
#include "src/plan/backend.hpp"

namespace pagoda::detail {

/// In order of preference. The generic backend supports everything, so it comes last.
template <class ExecutionSpace>
BackendList<ExecutionSpace> backends() {
  static const Backend<ExecutionSpace>* const list[] = {
      &tuned_backend<ExecutionSpace>(),
      &generic_backend<ExecutionSpace>(),
  };
  return list;
}

#define PAGODA_INSTANTIATE(Space) template BackendList<Space> backends<Space>();
PAGODA_FOR_EACH_SPACE(PAGODA_INSTANTIATE)
#undef PAGODA_INSTANTIATE

}  // namespace pagoda::detail
