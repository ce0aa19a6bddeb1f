// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/cache_ref.hpp>

namespace pagoda::detail {

/// One call of decode, without types. decode checks it, a backend runs it.
struct Problem {
  CacheRef kv;    ///< keys and values
  TensorRef q;    ///< (query token, q head, head_dim)
  TensorRef out;  ///< (query token, q head, head_dim_v)
  TensorRef lse;  ///< (query token, q head); data may be null
};

}  // namespace pagoda::detail
