// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/cuda/tuned/args.hpp"

namespace pagoda::tuned::many {

/// What the kernel for many query rows reads, by value.
struct Args : tuned::Args {
  CUtensorMap q_map;
  float4* parts;  ///< [block][2] of part_quads(part_rows)
  int part_rows;
};

/// The kernel of a type, as a pointer to launch. Each is compiled in a unit of its own type, for sm_90a.
template <Type T>
const void* kernel_of(int together);

}  // namespace pagoda::tuned::many
