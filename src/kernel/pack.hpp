// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace pagoda::detail {

/// W elements read or written as one aligned vector.
template <class T, int W>
struct alignas(sizeof(T) * W > 16 ? 16 : sizeof(T) * W) Pack {
  T at[W];
};

}  // namespace pagoda::detail
