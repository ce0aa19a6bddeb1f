// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/cache_ref.hpp>
#include <pagoda/types.hpp>

#include <algorithm>
#include <bit>
#include <cstdint>

/// How the KV rows of a cache lie in memory.
namespace pagoda::detail {

struct RowLayout {
  bool dense_dims;  ///< the dims of each row lie side by side, and so do its block scales
  int alignment;    ///< bytes: the largest power of two, at most 256, that divides the address of every row
};

inline RowLayout row_layout(const CacheRef& kv) {
  bool dense         = true;
  std::uint64_t bits = 256;
  for (const TensorRef* t : {&kv.k, &kv.v}) {
    dense = dense && (t->stride[3] == 1 || t->extent[3] <= 1);
    bits |= reinterpret_cast<std::uintptr_t>(t->data);
    for (int axis = 0; axis < 3; ++axis)
      if (t->extent[axis] > 1) bits |= static_cast<std::uint64_t>(t->stride[axis] * size_of(t->type));
  }
  const auto dense_scales = [](const ScaleRef& s, const TensorRef& t) {
    return !s.blocks || s.block_stride[3] == 1 ||
           blocks_of(t.type, static_cast<int>(t.extent[3]) * dims_per_element(t.type)) <= 1;
  };
  dense = dense && dense_scales(kv.k_scale, kv.k) && dense_scales(kv.v_scale, kv.v);
  return {dense, 1 << std::countr_zero(bits)};
}

/// Whether a plan can decode this cache. row_alignment: KernelChoice::row_alignment of the plan.
inline bool rows_fit(const CacheRef& kv, int row_alignment) {
  const RowLayout rows = row_layout(kv);
  return row_alignment == 0 || (rows.dense_dims && rows.alignment >= row_alignment);
}

/// Distances between rows, in units of 2^shift bytes.
struct RowUnits {
  int shift;           ///< 2^shift: the largest power of two of bytes that divides the distance between any two rows
  std::int64_t count;  ///< units from the first row to the farthest one
};

inline RowUnits row_units(const CacheRef& kv) {
  std::uint64_t all     = std::uint64_t(1) << 20;
  std::int64_t farthest = 0;
  for (const TensorRef* t : {&kv.k, &kv.v}) {
    std::int64_t span = 0;
    for (int axis = 0; axis < 3; ++axis) {
      if (t->extent[axis] <= 1) continue;
      const std::int64_t bytes = t->stride[axis] * size_of(t->type);
      all |= static_cast<std::uint64_t>(bytes);
      span += (t->extent[axis] - 1) * bytes;
    }
    farthest = std::max(farthest, span);
  }
  const int shift = std::countr_zero(all);
  return {shift, farthest >> shift};
}

/// Whether a token's value is the first head_dim_v elements of its key, in the same memory (latent caches).
inline bool values_in_keys(const CacheRef& kv) {
  bool same = kv.v.data == kv.k.data && kv.v.type == kv.k.type && kv.head_dim_v() <= kv.head_dim();
  for (int axis = 0; axis < 4; ++axis)
    same = same && (kv.v.stride[axis] == kv.k.stride[axis] || kv.v.extent[axis] <= 1);
  return same;
}

/// Number of kv heads whose rows of a token follow each other in memory: all of them (NHD), or one.
inline int heads_in_turn(const CacheRef& kv) {
  const auto in_turn = [](const TensorRef& t) { return t.stride[2] < t.stride[1] && t.stride[2] <= 2 * t.extent[3]; };
  return in_turn(kv.k) && in_turn(kv.v) ? kv.num_kv_heads() : 1;
}

}  // namespace pagoda::detail
