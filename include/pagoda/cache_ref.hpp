// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/row_formats.hpp>
#include <pagoda/types.hpp>

#include <Kokkos_Core.hpp>

#include <array>
#include <cstdint>

/// @file
/// Plain descriptions of Views and caches. Every call converts its Views to these, checks them once and passes them to
/// a backend. Pointers point to memory of the execution space. Strides are in elements.
namespace pagoda {

/// Order of the token and head axes in a View of keys or values.
enum class KVOrder {
  NHD,  ///< (page or sequence, token, kv head, dim)
  HND   ///< (page or sequence, kv head, token, dim)
};

/// Pointer, element type, shape and strides (in elements) of a strided array of up to four axes.
struct TensorRef {
  void* data = nullptr;                  ///< the first element
  DType type = DType::fp32;              ///< type of the elements
  int rank   = 0;                        ///< number of axes
  std::array<std::int64_t, 4> extent{};  ///< extent of each axis
  std::array<std::int64_t, 4> stride{};  ///< stride of each axis, in elements
};

/// Describes a View; a View without data gives a TensorRef without data.
template <class View>
TensorRef tensor_ref(const View& view) {
  static_assert(View::rank() <= 4, "Pagoda describes arrays of at most four axes");
  static_assert(Element<typename View::value_type>, "Pagoda has no code for this element type (see dtype_of)");
  TensorRef ref;
  ref.data = const_cast<std::remove_const_t<typename View::value_type>*>(view.data());
  ref.type = dtype_v<typename View::value_type>;
  ref.rank = static_cast<int>(View::rank());
  for (int axis = 0; axis < ref.rank; ++axis) {
    ref.extent[axis] = static_cast<std::int64_t>(view.extent(axis));
    ref.stride[axis] = static_cast<std::int64_t>(view.stride(axis));
  }
  return ref;
}

/// Scales of the keys or the values of a quantized cache: floats, block scales, or both.
struct ScaleRef {
  const float* data            = nullptr;  ///< null: 1 throughout
  std::int64_t stride[3]       = {};       ///< strides (page, token in page, kv head), in floats; 0: one for all
  const void* blocks           = nullptr;  ///< block scales, of the type that the cache's elements require; null: none
  std::int64_t block_stride[4] = {};       ///< strides (page, token in page, kv head, block), in block scales

  /// The scale of a KV row.
  KOKKOS_FUNCTION float operator()(std::int64_t page, int token, int head) const {
    return data ? data[page * stride[0] + token * stride[1] + head * stride[2]] : 1.0f;
  }
  /// The block scale of dim d of a row of T.
  template <class T>
  KOKKOS_FUNCTION float of_block(std::int64_t page, int token, int head, int d) const {
    return static_cast<const block_scale_t<T>*>(blocks)[page * block_stride[0] + token * block_stride[1] +
                                                        head * block_stride[2] + d / block_dims_v<T> * block_stride[3]];
  }
};

/// A cache of keys and values. Axes of `k` and `v` are always (page, token in page, kv head, dim), for any order in
/// memory. A contiguous cache has one page for each sequence and no table: page = sequence.
struct CacheRef {
  TensorRef k;                               ///< keys
  TensorRef v;                               ///< values
  ScaleRef k_scale;                          ///< scales of keys of a quantized cache
  ScaleRef v_scale;                          ///< scales of values of a quantized cache
  const int* seq_lens            = nullptr;  ///< [sequences] tokens held, on the device
  const int* sequence_ids        = nullptr;  ///< [batch] the sequence each batch entry reads; null: entry b reads b
  bool paged                     = false;    ///< pages come from a table; otherwise page = sequence
  const int* block_table         = nullptr;  ///< page ids, dense or CSR
  const int* page_indptr         = nullptr;  ///< CSR: pages of s are block_table[page_indptr[s] ...]; null: dense
  std::int64_t table_row_stride  = 0;        ///< dense: elements between the rows of block_table
  std::int64_t table_page_stride = 1;        ///< elements between the entries of one row
  std::int64_t table_pages       = 0;        ///< dense: entries of one row; CSR: entries in all
  int num_sequences              = 0;        ///< entries of seq_lens
  int batch                      = 0;        ///< entries decoded by one call
  int max_seq_len                = 0;        ///< tokens a sequence of this cache can hold

  /// Pages, or sequences of a contiguous cache.
  std::int64_t num_pages() const { return k.extent[0]; }
  /// Tokens in a page, or max_seq_len of a contiguous cache.
  int page_size() const { return static_cast<int>(k.extent[1]); }
  /// Heads of keys and values.
  int num_kv_heads() const { return static_cast<int>(k.extent[2]); }
  /// Dims of a key. An element of an int4 cache holds two; a row format says its own.
  int head_dim() const {
    return has_row_format(k.type) ? row_format_of(k.type).head_dim
                                  : static_cast<int>(k.extent[3]) * dims_per_element(k.type);
  }
  /// Dims of a value.
  int head_dim_v() const {
    return has_row_format(v.type) ? row_format_of(v.type).head_dim_v
                                  : static_cast<int>(v.extent[3]) * dims_per_element(v.type);
  }
};

}  // namespace pagoda
