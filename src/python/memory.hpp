// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/python/runtime.hpp"

#include <nanobind/ndarray.h>

namespace pagoda::python {

/// Memory of the library as an array, which keeps `owner` alive.
inline nb::ndarray<nb::array_api> array_of(const pagoda_tensor& t, Device device, nb::handle owner) {
  const dlpack::DataType type = dlpack_type(t.type);
  std::size_t shape[4];
  for (int axis = 0; axis < 4; ++axis) shape[axis] = static_cast<std::size_t>(t.extent[axis]);
  return nb::ndarray<nb::array_api>(t.data, 4, shape, owner, t.stride, {type.code, type.bits, type.lanes}, device.type,
                                    device.id);
}

}  // namespace pagoda::python
