// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/types.hpp>

#include <Kokkos_Core.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

/// @file
/// Caches whose rows have a format of their own: elements are the bytes of a row.
///
/// **fp8_ds_mla**: latent caches (multi-head latent attention) in 8 bits, as FlashMLA and vLLM store those of
/// DeepSeek-V3.2. A token has one row of 656 bytes (fp8_ds_mla_row), which all query heads read:
///
///     bytes      numbers
///     0 .. 511   dims 0 to 511 of the key, which are also the value: OCP E4M3
///     512 .. 527 4 floats: the scales of dims 0 to 127, 128 to 255, 256 to 383 and 384 to 511
///     528 .. 655 dims 512 to 575 of the key (the rotary part): bf16, without a scale
///
/// A number of the first 512 dims is the stored one times its scale. So head_dim is 576, head_dim_v is 512, and there
/// is one KV head. Keys are a View of fp8_ds_mla_t with axes (page, token, 1, 656) or (sequence, token, 1, 656), and
/// values are the same View:
///
///     Kokkos::View<pagoda::fp8_ds_mla_t****, Kokkos::LayoutRight> rows("rows", pages, 64, 1, 656);
///     const pagoda::PagedKV kv{rows, rows, block_table, seq_lens};
///     auto plan = pagoda::plan(exec, kv, {.num_q_heads = 128, .softmax_scale = 1 / std::sqrt(192.0)});
///
/// Strides are in elements, which are bytes. That of the last axis is 1; those of pages and tokens, and the address of
/// the first row, are multiples of 16. Another cache throws InvalidArgument with the extent, stride or address that is
/// not allowed. There are no scales besides those of the rows: with_scales does not compile, and the C interface
/// refuses k_scale and v_scale. Queries and outputs have 576 and 512 dims, of any plain type; on NVIDIA GPUs queries
/// of bf16 are fastest. The generic backend decodes these caches, on NVIDIA GPUs by matrix instructions, on AMD GPUs
/// without (Plan::describe says that this is slow). On sm_90 the hand-tuned kernels decode them for queries of bf16,
/// up to 128 query heads, without score options or lists; they round numbers to bf16, as FlashMLA does
/// (src/NUMERICS.md). Pools and write_kv do not write these caches.
///
/// Source: DeepSeek's FlashMLA, README, "FP8 KV cache" (DeepSeek-V3.2); vLLM, kv_cache_dtype "fp8_ds_mla".
namespace pagoda {

/// A row of fp8_ds_mla: a token.
struct fp8_ds_mla_row {
  fp8_e4m3_t latent[512];  ///< dims 0 to 511 of the key: dim d is latent[d] * scale[d / 128]. They are also the value.
  float scale[4];          ///< of 128 dims each
  bfloat16_t rope[64];     ///< dims 512 to 575 of the key, as they are
};
static_assert(sizeof(fp8_ds_mla_row) == 656 && std::is_trivially_copyable_v<fp8_ds_mla_row>);

/// What all rows of a type with a row format have in common. Zeros for other types.
struct RowFormat {
  int bytes;       ///< of a row: the last extent of a cache
  int head_dim;    ///< dims of a key
  int head_dim_v;  ///< dims of a value, the first ones of the key
  int alignment;   ///< bytes: rows begin on multiples of this
};

/// The format of rows of a type.
KOKKOS_INLINE_FUNCTION constexpr RowFormat row_format_of(DType type) {
  return type == DType::fp8_ds_mla ? RowFormat{656, 576, 512, 16} : RowFormat{0, 0, 0, 1};
}

namespace detail {

/// Where the numbers of a row of T lie, in bytes: dims below `scaled_dims` are fp8_e4m3_t with a float for each
/// `block_dims` of them, the others bfloat16_t.
template <class T>
struct RowPlaces;
template <>
struct RowPlaces<fp8_ds_mla_t> {
  static constexpr int scaled_dims = 512, block_dims = 128;

  KOKKOS_INLINE_FUNCTION static constexpr int scale(int d) {
    return static_cast<int>(offsetof(fp8_ds_mla_row, scale)) + d / block_dims * static_cast<int>(sizeof(float));
  }
  KOKKOS_INLINE_FUNCTION static constexpr int number(int d) {
    return d < scaled_dims ? d
                           : static_cast<int>(offsetof(fp8_ds_mla_row, rope)) +
                                 (d - scaled_dims) * static_cast<int>(sizeof(bfloat16_t));
  }
};

/// Dim d of a row, scaled.
template <class T>
KOKKOS_INLINE_FUNCTION float number_in_row(const T* row, int d) {
  using Places      = RowPlaces<T>;
  const T* const at = row + Places::number(d);
  if (d >= Places::scaled_dims) {
    bfloat16_t number;
    __builtin_memcpy(&number, at, sizeof(number));
    return number;
  }
  fp8_e4m3_t number;
  float scale;
  __builtin_memcpy(&number, at, sizeof(number));
  __builtin_memcpy(&scale, row + Places::scale(d), sizeof(scale));
  return number * scale;
}

}  // namespace detail
}  // namespace pagoda
