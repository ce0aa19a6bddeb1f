// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/detail/schedule.hpp>
#include <pagoda/types.hpp>

#include "src/base/divisor.hpp"

#include <Kokkos_Core.hpp>

#include <cstdint>
#include <type_traits>

namespace pagoda::detail {

/// One split of work: the query rows of one tile over a range of visible tokens, and where the result goes.
struct WorkItem {
  int batch;              ///< batch entry
  int kv_head;            ///< the first of KernelArgs::heads_per_item, as many of which make an item
  int row_tile;           ///< which tile of the entry's query rows (query token x head of the group)
  int begin, end;         ///< visible-token indices
  int step;               ///< workers take a tile each from begin on, and again from begin + step on, up to end
  int split, num_splits;  ///< which of the row's splits this is; splits == 1: the rows are whole and go to the output
  int slot;               ///< partial state of the row's first split; the others follow
};

/// Counters of one decode that hands out its items: zero between decodes.
struct TeamCounters {
  int next;  ///< items handed out beyond each team's first
  int left;  ///< teams that found nothing more to do
};

/// Distances between pages, tokens and heads of a cache.
struct RowSteps {
  std::uint32_t page, token, head;
};

/// A strided array in device memory, strides in elements.
struct DeviceArray {
  void* data;
  std::int64_t stride0, stride1, stride2;
  DType type;
};

KOKKOS_INLINE_FUNCTION double load_as_double(const void* data, DType type, std::int64_t i) {
  switch (type) {
    case DType::fp64:
      return static_cast<const double*>(data)[i];
    case DType::fp32:
      return static_cast<const float*>(data)[i];
    case DType::fp16:
      return static_cast<const half_t*>(data)[i];
    default:
      return static_cast<const bfloat16_t*>(data)[i];
  }
}

KOKKOS_INLINE_FUNCTION float load_as_float(const void* data, DType type, std::int64_t i) {
  switch (type) {
    case DType::fp64:
      return static_cast<float>(static_cast<const double*>(data)[i]);
    case DType::fp32:
      return static_cast<const float*>(data)[i];
    case DType::fp16:
      return static_cast<const half_t*>(data)[i];
    default:
      return static_cast<const bfloat16_t*>(data)[i];
  }
}

/// Element i as the accumulator type. Queries and outputs are few, so their type is a run-time matter.
template <class Acc>
KOKKOS_INLINE_FUNCTION Acc load_element(const void* data, DType type, std::int64_t i) {
  if constexpr (std::is_same_v<Acc, double>) {
    return load_as_double(data, type, i);
  } else {
    return load_as_float(data, type, i);
  }
}

/// Stores an accumulator as element i, rounded once.
template <class Acc>
KOKKOS_INLINE_FUNCTION void store_element(void* data, DType type, std::int64_t i, Acc value) {
  switch (type) {
    case DType::fp64:
      static_cast<double*>(data)[i] = value;
      break;
    case DType::fp32:
      static_cast<float*>(data)[i] = static_cast<float>(value);
      break;
    case DType::fp16:
      static_cast<half_t*>(data)[i] = half_t(value);
      break;
    default:
      static_cast<bfloat16_t*>(data)[i] = bfloat16_t(value);
      break;
  }
}

/// Everything the kernels of one decode read, by value. Launches carry HintLightWeight, with which Kokkos hands
/// functors of up to 4096 bytes to the device as plain kernel arguments; otherwise, from 512 bytes on with their
/// policy, they would go through constant memory, which costs a wait and which a graph capture refuses.
struct KernelArgs {
  // What every team needs before its first copy stands together: constants come in lines, and a team waits for each.
  const int* seq_lens;
  const int* sequence_ids;  ///< null: batch entry b is sequence b
  const int* table;         ///< null: contiguous, page = sequence
  const int* page_indptr;   ///< null: dense table
  int batch, heads_per_item;
  int tiles_per_head;       ///< of an entry of one query token
  Divisor tiles_per_entry;  ///< the same
  Divisor grid_splits;      ///< of every row of an even batch, see Share
  Divisor page_size;
  int table_row_stride, table_page_stride;
  int table_pages;                  ///< entries of a row of a dense table
  bool paged, near_tokens;          ///< tokens of a page lie less than 2^26 bytes from each other
  bool wide_queries, wide_outputs;  ///< rows can be read or written in aligned vectors
  int head_dim, head_dim_v;
  float softmax_scale32;  ///< options.softmax_scale, rounded on the host: a GPU would round it again and again
  SplitBounds split;
  Divisor group, row_tile;
  DeviceArray q;
  const void* k;
  const void* v;
  RowSteps k_units, v_units;  ///< strides in units of row_unit bytes, for fragments that ask for it
  std::uint32_t row_unit;     ///< a power of two that divides the distance between any two rows

  // Strides of keys and values by (page, token in page, kv head, dim), in elements.
  std::int64_t k_page, k_token, k_head, k_dim;
  std::int64_t v_page, v_token, v_head, v_dim;
  int num_pages;
  int head_groups;  ///< of heads_per_item kv heads, that an entry has
  AttentionOptions options;

  // Outputs and workspace.
  DeviceArray out, lse;
  TeamCounters* team_counters;
  int* arrived;          ///< [2][slots]: splits of a group, groups of a row; zero between decodes
  void* partial_state;   ///< accumulator type, [2][slot][head of the item][row of the tile][2]: maximum in base 2, sum
  void* partial_values;  ///< accumulator type, [slot][head][row][value_stride], not normalised
  int slots, value_stride;
  Divisor value_quads;  ///< of an output row
#if defined(PAGODA_DEBUG_BOUNDS)
  int max_seq_len, num_sequences;  ///< of the cache
  int num_query_tokens;            ///< of q
#endif

  template <class Acc>
  KOKKOS_FUNCTION Acc softmax_scale_as() const {
    if constexpr (std::is_same_v<Acc, float>) {
      return softmax_scale32;
    } else {
      return options.softmax_scale;
    }
  }
  KOKKOS_FUNCTION int sequence(int b) const {
    const int s = sequence_ids ? sequence_ids[b] : b;
#if defined(PAGODA_DEBUG_BOUNDS)
    if (s < 0 || s >= num_sequences) Kokkos::abort("pagoda::decode: sequence_ids holds an id outside the cache");
#endif
    return s;
  }
  KOKKOS_FUNCTION int seq_len(int b) const {
    const int tokens = seq_lens[sequence(b)];
#if defined(PAGODA_DEBUG_BOUNDS)
    if (tokens < 0 || tokens > max_seq_len)
      Kokkos::abort("pagoda::decode: seq_lens holds a length beyond what the cache can hold");
#endif
    return tokens;
  }
  KOKKOS_FUNCTION int query_begin(int b) const {
    return options.cu_seqlens_q ? options.cu_seqlens_q[b] : b * options.uniform_query_len;
  }
  KOKKOS_FUNCTION int query_len(int b) const {
    const int* const begins = options.cu_seqlens_q;
    const int queries       = begins ? begins[b + 1] - begins[b] : options.uniform_query_len;
#if defined(PAGODA_DEBUG_BOUNDS)
    if (queries < 0 || queries > num_query_tokens - query_begin(b) || query_begin(b) < 0)
      Kokkos::abort("pagoda::decode: cu_seqlens_q falls, or points beyond q");
#endif
    return queries;
  }
  /// Page ids of a sequence: entry i holds its i-th run of page_size tokens.
  KOKKOS_FUNCTION const int* pages_of(int sequence) const {
    return table + (page_indptr ? page_indptr[sequence] : static_cast<std::int64_t>(sequence) * table_row_stride);
  }
  KOKKOS_FUNCTION int page(const int* pages, int i) const {
    const int id = pages[static_cast<std::int64_t>(i) * table_page_stride];
#if defined(PAGODA_DEBUG_BOUNDS)
    if (id < 0 || id >= num_pages) Kokkos::abort("pagoda::decode: block_table holds a page id outside the pool");
#endif
    return id;
  }
};
static_assert(sizeof(KernelArgs) <= 640, "a kernel argument, read by every team: keep it small");

/// Scales of the keys or values of a quantized cache; strides in floats.
struct ScaleArray {
  const float* at;  ///< null: 1
  std::uint32_t page, token, head;

  /// Whether tokens differ. Where they do not, the generic kernel applies the scale and fragments need not ask.
  KOKKOS_FUNCTION bool per_token() const { return at && (page | token) != 0; }
  /// Where the scale of head 0 of a token lies.
  KOKKOS_FUNCTION std::int64_t offset(int page_id, int slot) const {
    return static_cast<std::int64_t>(page_id) * page + static_cast<std::int64_t>(slot) * token;
  }
  KOKKOS_FUNCTION float of_token(std::int64_t offset, int kv_head) const {
    return at[offset + static_cast<std::int64_t>(kv_head) * head];
  }
  /// The scale of a head where all tokens have the same, 1 otherwise.
  KOKKOS_FUNCTION float of_head(int kv_head) const { return at && !per_token() ? of_token(0, kv_head) : 1.0f; }
};

/// Block scales of the keys or values of a cache; strides in scales.
struct BlockScaleArray {
  const void* at;
  std::uint32_t page, token, head, block;

  /// Where the first scale of a row lies.
  KOKKOS_FUNCTION std::int64_t offset(int page_id, int slot, int kv_head) const {
    return static_cast<std::int64_t>(page_id) * page + static_cast<std::int64_t>(slot) * token +
           static_cast<std::int64_t>(kv_head) * head;
  }
  /// Of dim d of a row of T.
  template <class T>
  KOKKOS_FUNCTION float of_dim(std::int64_t row, int d) const {
    return static_cast<const block_scale_t<T>*>(at)[row + static_cast<std::int64_t>(d / block_dims_v<T>) * block];
  }
};

/// Of decodes of quantized caches; other types do without, so that their kernels stay as they are.
struct ScaledKernelArgs : KernelArgs {
  ScaleArray k_scale, v_scale;
};

/// Of decodes of caches with block scales. Their other scales are the same for a whole tensor.
struct BlockScaledKernelArgs : ScaledKernelArgs {
  BlockScaleArray k_blocks, v_blocks;
};
/// What a decode of any type may need.
using AllKernelArgs = BlockScaledKernelArgs;

/// scaled, blocks: the cache has scales, and scales of blocks.
template <bool scaled, bool blocks>
using KernelArgsWith =
    std::conditional_t<blocks, BlockScaledKernelArgs, std::conditional_t<scaled, ScaledKernelArgs, KernelArgs>>;
template <class T>
using KernelArgsOf = KernelArgsWith<is_quantized_v<T>, (block_dims_v<T> > 0)>;

template <class Fragment>
using KernelArgsFor = KernelArgsWith<Fragment::scaled, (Fragment::block_dims > 0)>;

}  // namespace pagoda::detail
