// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#if defined(USES_IN_SHARED_LIBRARY)
#define USES_EXPORT __attribute__((visibility("default")))
#else
#define USES_EXPORT
#endif

/// A decode with a known result. Returns true if it is right.
USES_EXPORT bool decode_is_right();
/// Calls the other entries of every public header. Returns true where the results are right.
USES_EXPORT bool everything_else_is_right();
/// Makes Pagoda throw InvalidArgument.
USES_EXPORT void provoke_invalid_argument();
/// Makes Pagoda throw OutOfCapacity.
USES_EXPORT void provoke_out_of_capacity();
