// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/cache_ref.hpp>
#include <pagoda/error.hpp>
#include <pagoda/row_formats.hpp>

#include <cstdint>

namespace pagoda::detail {

/// Throws InvalidArgument if keys of a type with a row format, or values beside them, are not as row_formats.hpp says.
/// Axes are (page or sequence, token, kv head, byte).
inline void check_row_format(const char* who, const TensorRef& k, const TensorRef& v) {
  if (!has_row_format(k.type)) return;
  const RowFormat format = row_format_of(k.type);
  const char* const type = name_of(k.type);
  require(k.extent[3] == format.bytes, who, ": axis 3 of k has extent ", k.extent[3], "; allowed: ", format.bytes,
          ", the bytes of a row of ", type, " (head_dim ", format.head_dim, ", head_dim_v ", format.head_dim_v, ")");
  require(k.extent[2] == 1, who, ": k has ", k.extent[2], " kv heads; allowed: 1, for rows of ", type);
  require(k.stride[3] == 1, who, ": axis 3 of k has stride ", k.stride[3], "; allowed: 1, for rows of ", type);
  bool same = v.data == k.data && v.type == k.type;
  for (int axis = 0; axis < 4; ++axis)
    same = same && v.extent[axis] == k.extent[axis] && (v.stride[axis] == k.stride[axis] || v.extent[axis] <= 1);
  require(same, who, ": v is not the rows of k; allowed: the same View for both, as a row of ", type,
          " holds key and value");
  const auto address = reinterpret_cast<std::uintptr_t>(k.data);
  require(address % static_cast<unsigned>(format.alignment) == 0, who, ": k begins ",
          address % static_cast<unsigned>(format.alignment), " bytes after a multiple of ", format.alignment,
          "; allowed: multiples of ", format.alignment, ", for rows of ", type);
  for (int axis = 0; axis < 2; ++axis)
    require(k.extent[axis] <= 1 || k.stride[axis] % format.alignment == 0, who, ": axis ", axis,
            " of k (page or sequence, token, kv head, byte) has stride ", k.stride[axis], "; allowed: multiples of ",
            format.alignment, ", for rows of ", type);
}

}  // namespace pagoda::detail
