// SPDX-License-Identifier: Apache-2.0
#pragma once

struct alignas(64) CUtensorMap {
  unsigned long long opaque[16];
};
