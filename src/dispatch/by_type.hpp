// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/error.hpp>
#include <pagoda/problem.hpp>
#include <pagoda/types.hpp>

#include "pagoda_enabled_types.hpp"
#include "src/dispatch/checks.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>

namespace pagoda::detail {

/// Calls f with a null pointer of the C++ type that `type` stands for, among those this build has kernels for.
template <class F>
void by_type(DType type, F&& f) {
  switch (type) {
#define PAGODA_CASE(name) \
  case DType::name:       \
    return f(static_cast<type_##name*>(nullptr));
    PAGODA_FOR_EACH_ENABLED_TYPE(PAGODA_CASE)
#undef PAGODA_CASE
    default:
      break;
  }
#define PAGODA_NAME(name) " " #name
  throw InvalidArgument(concat("pagoda: the cache's element type is ", name_of(type), "; allowed in this build:",
                               "" PAGODA_FOR_EACH_ENABLED_TYPE(PAGODA_NAME), " (CMake's PAGODA_TYPES)"));
#undef PAGODA_NAME
}

/// The same among types that are not quantized, which have kernels that write them too.
template <class F>
void by_plain_type(DType type, F&& f) {
  by_type(type, [&]<class T>(T* which) {
    if constexpr (!is_quantized_v<T>) {
      f(which);
    } else {
      throw InvalidArgument(concat("pagoda: the cache's element type is ", name_of(type), "; allowed: ", plain_types(),
                                   ", for quantized caches are only read"));
    }
  });
}

/// How the rows of keys and values lie in memory.
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
  // Block scales of a row, where there are some, side by side too.
  const auto in_line = [](const ScaleRef& s, const TensorRef& t) {
    return !s.blocks || s.block_stride[3] == 1 ||
           blocks_of(t.type, static_cast<int>(t.extent[3]) * dims_per_element(t.type)) <= 1;
  };
  dense = dense && in_line(kv.k_scale, kv.k) && in_line(kv.v_scale, kv.v);
  return {dense, 1 << std::countr_zero(bits)};
}

/// Whether a plan can decode this cache: its fragment reads vectors from rows that begin on multiples of
/// `row_alignment` bytes, or single elements of any stride if `wide` is false.
inline bool rows_fit(const CacheRef& kv, bool wide, int row_alignment) {
  const RowLayout rows = row_layout(kv);
  return !wide || (rows.dense_dims && rows.alignment >= row_alignment);
}

/// The largest power of two of bytes that divides the distance between any two rows of the cache, and how many such
/// units the farthest row lies from the first.
struct RowUnits {
  int shift;
  std::int64_t count;
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

/// A token's value is the first head_dim_v elements of its key, in the same memory (latent caches).
inline bool values_in_keys(const CacheRef& kv) {
  bool same = kv.v.data == kv.k.data && kv.v.type == kv.k.type && kv.head_dim_v() <= kv.head_dim();
  for (int axis = 0; axis < 4; ++axis)
    same = same && (kv.v.stride[axis] == kv.k.stride[axis] || kv.v.extent[axis] <= 1);
  return same;
}

/// Kv heads whose rows of a token follow each other in memory (NHD): all, or one.
inline int heads_in_turn(const CacheRef& kv) {
  const auto in_turn = [](const TensorRef& t) { return t.stride[2] < t.stride[1] && t.stride[2] <= 2 * t.extent[3]; };
  return in_turn(kv.k) && in_turn(kv.v) ? kv.num_kv_heads() : 1;
}

constexpr int padded_to_quads(int dims) { return (dims + 3) / 4 * 4; }

}  // namespace pagoda::detail
