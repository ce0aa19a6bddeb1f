// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Whether this processor multiplies tiles of bfloat16 (Intel AMX), and the operating system lets this process use them.
/// The first call asks it for permission.
namespace pagoda::detail {

bool amx_usable();

}  // namespace pagoda::detail
