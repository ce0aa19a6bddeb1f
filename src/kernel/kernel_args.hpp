// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/detail/schedule.hpp>
#include <pagoda/entry.hpp>
#include <pagoda/types.hpp>

#include "src/base/arithmetic.hpp"
#include "src/base/divisor.hpp"
#include "src/kernel/entry.hpp"

#include <Kokkos_Core.hpp>

#include <cstdint>
#include <type_traits>

namespace pagoda::detail {

/// One item of work: the query rows of one tile, over one split of their visible tokens.
struct WorkItem {
  int batch;              ///< index of the entry: KernelArgs::entry
  int kv_head;            ///< the first of KernelArgs::heads_per_item kv heads
  int row_tile;           ///< index among the tiles of the entry's query rows (query token x head of the group)
  int begin, end;         ///< visible-token indices
  int step;               ///< workers take one tile each from begin, then from begin + step, and so on, up to end
  int split, num_splits;  ///< index of this split of the row; if num_splits == 1, results go to the output
  int slot;               ///< slot of the row's first split; those of the others follow
};

/// Counters by which the teams of one decode hand out items. They are zero between decodes.
struct TeamCounters {
  int next;  ///< items handed out beyond each team's first
  int left;  ///< teams that found no more items
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

/// Loads element i as the accumulator type. Queries and outputs are few, so their type is a run-time argument.
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

/// A list of entries (DeviceEntries), and the arrays of its partial states.
struct ListArgs {
  const Entry* entries;  ///< null: the decode has a batch, not a list
  const EntryQuery* queries;
  const int* state_begin;
  const std::uint64_t* masks;  ///< null: no query token has a mask
  DeviceArray out, lse;        ///< strides (state, q head, dim)
  bool wide_outputs;           ///< rows of `out` can be written in aligned vectors
#if defined(PAGODA_DEBUG_BOUNDS)
  int num_queries, num_state_begin, num_mask_words;  ///< extents of the list's arrays
#endif
};

/// Everything that the kernels of one decode read, by value. Launches carry HintLightWeight: Kokkos then passes
/// functors of up to 4096 bytes as plain kernel arguments. Without it functors of 512 bytes or more, policy included,
/// go through constant memory, which costs a wait and does not work under graph capture.
struct KernelArgs {
  // Fields that every team needs before its first copy are adjacent: each line of constants takes one load latency.
  const int* seq_lens;
  const int* sequence_ids;  ///< null: batch entry b is sequence b
  const int* table;         ///< null: contiguous, page = sequence
  const int* page_indptr;   ///< null: dense table
  int batch, heads_per_item;
  int tiles_per_head;       ///< row tiles of a head group, in an entry of one query token
  Divisor tiles_per_entry;  ///< row tiles of all head groups, in an entry of one query token
  Divisor grid_splits;      ///< splits of each row of an even batch, see Share
  Divisor page_size;
  int table_row_stride, table_page_stride;
  int table_pages;                  ///< page ids in a row of a dense table
  bool paged, near_tokens;          ///< tokens of a page lie less than 2^26 bytes from each other
  bool wide_queries, wide_outputs;  ///< rows can be read or written in aligned vectors
  int head_dim, head_dim_v;
  float softmax_scale32;  ///< options.softmax_scale, rounded once on the host
  SplitBounds split;
  Divisor group, row_tile;
  DeviceArray q;
  const void* k;
  const void* v;
  RowSteps k_units, v_units;  ///< strides in units of row_unit bytes, for fragments that use them
  std::uint32_t row_unit;     ///< a power of two that divides the distance between any two rows

  // Strides of keys and values by (page, token in page, kv head, dim), in elements.
  std::int64_t k_page, k_token, k_head, k_dim;
  std::int64_t v_page, v_token, v_head, v_dim;
  int num_pages;
  int head_groups;  ///< groups of heads_per_item kv heads in an entry
  int isa;          ///< instruction set of fragments that have several (HostIsa)
  AttentionOptions options;

  // Outputs and workspace.
  DeviceArray out, lse;
  TeamCounters* team_counters;
  int* arrived;          ///< [2][slots]: splits of a group, groups of a row; zero between decodes
  void* partial_state;   ///< accumulator type, [2][slot][head of the item][row of the tile][2]: maximum in base 2, sum
  void* partial_values;  ///< accumulator type, [slot][head][row][value_stride], not normalised
  int slots, value_stride;
  Divisor value_quads;  ///< quads of an output row
#if defined(PAGODA_DEBUG_BOUNDS)
  int max_seq_len, num_sequences;  ///< bounds of the cache
  int num_query_tokens;            ///< extent of q
#endif
  ListArgs list;  ///< last: the instance without options does not read it

  template <class Acc>
  KOKKOS_FUNCTION Acc softmax_scale_as() const {
    if constexpr (std::is_same_v<Acc, float>) {
      return softmax_scale32;
    } else {
      return options.softmax_scale;
    }
  }
  /// Entry b of the decode. General: as in DecodeKernel; otherwise every entry has one query token.
  template <bool General>
  KOKKOS_FUNCTION EntryView entry(int b) const {
    if constexpr (General)
      if (list.entries) return entry_of_list(b);
    const int s = sequence(b);
    if constexpr (!General) return {s, 0, seq_len(s), b, 1};
    const int begin = options.cu_seqlens_q ? options.cu_seqlens_q[b] : b * options.uniform_query_len;
    return {s, 0, seq_len(s), begin, query_len(b, begin)};
  }
  /// Query token i of a list.
  KOKKOS_FUNCTION const EntryQuery& query_of_list(int i) const {
#if defined(PAGODA_DEBUG_BOUNDS)
    if (i < 0 || i >= list.num_queries) Kokkos::abort("pagoda::decode_entries: an entry has queries outside the list");
    const EntryQuery& query = list.queries[i];
    if (query.token < 0 || query.token >= num_query_tokens)
      Kokkos::abort("pagoda::decode_entries: a query has a token outside q");
    if (query.mask >= 0 && query.mask > list.num_mask_words - 2)
      Kokkos::abort("pagoda::decode_entries: a query has a mask outside the list");
#endif
    return list.queries[i];
  }
  /// The number of tokens of a sequence.
  KOKKOS_FUNCTION int seq_len(int sequence) const {
    const int tokens = seq_lens[sequence];
#if defined(PAGODA_DEBUG_BOUNDS)
    if (tokens < 0 || tokens > max_seq_len)
      Kokkos::abort("pagoda::decode: seq_lens holds a length beyond what the cache can hold");
#endif
    return tokens;
  }
  /// Page ids of a sequence: page i holds its i-th run of page_size tokens.
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

 private:
  KOKKOS_FUNCTION int sequence(int b) const {
    const int s = sequence_ids ? sequence_ids[b] : b;
#if defined(PAGODA_DEBUG_BOUNDS)
    if (s < 0 || s >= num_sequences) Kokkos::abort("pagoda::decode: sequence_ids holds an id outside the cache");
#endif
    return s;
  }
  KOKKOS_FUNCTION EntryView entry_of_list(int b) const {
    const Entry e  = list.entries[b];
    const bool any = e.num_queries > 0;  // otherwise the entry may name anything
#if defined(PAGODA_DEBUG_BOUNDS)
    if (any && (e.sequence < 0 || e.sequence >= num_sequences))
      Kokkos::abort("pagoda::decode_entries: an entry has a sequence outside the cache");
    if (any && e.state >= 0 && !list.state_begin)
      Kokkos::abort("pagoda::decode_entries: an entry has a state, the list none");
#endif
    const int last = any && e.last < 0 ? seq_len(e.sequence) : e.last;
    return {e.sequence, e.first,   greatest(last - e.first, 0), e.query_begin, e.num_queries, e.kv_head,
            e.state,    e.last < 0};
  }
  /// begin: first query token of entry b.
  KOKKOS_FUNCTION int query_len(int b, [[maybe_unused]] int begin) const {
    const int queries =
        options.cu_seqlens_q ? options.cu_seqlens_q[b + 1] - options.cu_seqlens_q[b] : options.uniform_query_len;
#if defined(PAGODA_DEBUG_BOUNDS)
    if (queries < 0 || queries > num_query_tokens - begin || begin < 0)
      Kokkos::abort("pagoda::decode: cu_seqlens_q falls, or points beyond q");
#endif
    return queries;
  }
};
static_assert(sizeof(KernelArgs) <= 768, "a kernel argument, read by every team: keep it small");

/// Scales of the keys or values of a quantized cache; strides in floats.
struct ScaleArray {
  const float* at;  ///< null: 1
  std::uint32_t page, token, head;

  /// Whether tokens have scales of their own. If not, the generic kernel applies the scale of the head.
  KOKKOS_FUNCTION bool per_token() const { return at && (page | token) != 0; }
  /// Offset of the scale of head 0 of a token.
  KOKKOS_FUNCTION std::int64_t offset(int page_id, int slot) const {
    return static_cast<std::int64_t>(page_id) * page + static_cast<std::int64_t>(slot) * token;
  }
  KOKKOS_FUNCTION float of_token(std::int64_t offset, int kv_head) const {
    return at[offset + static_cast<std::int64_t>(kv_head) * head];
  }
  /// The scale of a head if all of its tokens have the same, else 1.
  KOKKOS_FUNCTION float of_head(int kv_head) const { return at && !per_token() ? of_token(0, kv_head) : 1.0f; }
};

/// Block scales of the keys or values of a cache; strides in scales.
struct BlockScaleArray {
  const void* at;
  std::uint32_t page, token, head, block;

  /// Offset of the first scale of a row.
  KOKKOS_FUNCTION std::int64_t offset(int page_id, int slot, int kv_head) const {
    return static_cast<std::int64_t>(page_id) * page + static_cast<std::int64_t>(slot) * token +
           static_cast<std::int64_t>(kv_head) * head;
  }
  /// The scale of dim d of a row of T.
  template <class T>
  KOKKOS_FUNCTION float of_dim(std::int64_t row, int d) const {
    return static_cast<const block_scale_t<T>*>(at)[row + static_cast<std::int64_t>(d / block_dims_v<T>) * block];
  }
};

/// Arguments for quantized caches. Kernels of other types take the smaller KernelArgs.
struct ScaledKernelArgs : KernelArgs {
  ScaleArray k_scale, v_scale;
};

/// Arguments for caches with block scales. Their other scales are the same for a whole tensor.
struct BlockScaledKernelArgs : ScaledKernelArgs {
  BlockScaleArray k_blocks, v_blocks;
};
/// Arguments for any type.
using AllKernelArgs = BlockScaledKernelArgs;

/// Whether caches of T have scales beside their rows.
template <class T>
inline constexpr bool has_scale_arrays_v = is_quantized_v<T> && !has_row_format_v<T>;

/// The smallest arguments that suffice. scaled: the cache has scales; blocks: it has block scales.
template <bool scaled, bool blocks>
using KernelArgsWith =
    std::conditional_t<blocks, BlockScaledKernelArgs, std::conditional_t<scaled, ScaledKernelArgs, KernelArgs>>;
template <class T>
using KernelArgsOf = KernelArgsWith<has_scale_arrays_v<T>, (block_dims_v<T> > 0)>;

template <class Fragment>
using KernelArgsFor = KernelArgsWith<Fragment::scaled, (Fragment::block_dims > 0)>;

}  // namespace pagoda::detail
