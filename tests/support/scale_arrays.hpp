// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/support/placement.hpp"
#include "tests/support/sample.hpp"

#include <cstdint>
#include <vector>

namespace pagoda::test {

/// An array with the axes of the scales. Scales per head are a column of an array of two, so that they have a stride.
template <class Space>
Array<Space> make_scale_array(Scales scales, KVOrder order, std::int64_t pages, std::int64_t page_size,
                              std::int64_t kv_heads, const Arrangement& strides, const Space& exec) {
  const std::int64_t heads = scales == Scales::per_token ? 1 : kv_heads;
  const bool nhd           = order == KVOrder::NHD;
  std::vector<std::int64_t> extent{1};
  if (scales == Scales::per_head) extent = {heads, 2};
  if (scales == Scales::per_token || scales == Scales::per_token_and_head)
    extent = {pages, nhd ? page_size : heads, nhd ? heads : page_size};
  return Array<Space>(DType::fp32, extent, strides, exec);
}

/// The array of make_scale_array as a cache takes it.
template <class Space>
typename KVScales<typename Space::memory_space>::ScaleView scale_view(const Array<Space>& array, Scales scales,
                                                                      KVOrder order) {
  const auto tensor = array.template view<const float, 0>();
  switch (scales) {
    case Scales::none:
      return {};
    case Scales::per_tensor:
      return pagoda::per_tensor_scales(tensor, tensor).k;
    case Scales::per_head: {
      const auto heads = array.template view<const float, 1>();
      return pagoda::per_head_scales(heads, heads).k;
    }
    case Scales::per_token:  // an axis of one head
    case Scales::per_token_and_head:
      break;
  }
  const auto rows = array.template view<const float, 3>();
  return pagoda::per_token_and_head_scales(rows, rows, order).k;
}

}  // namespace pagoda::test
