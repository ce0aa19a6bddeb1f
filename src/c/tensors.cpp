// SPDX-License-Identifier: Apache-2.0
#include "src/c/tensors.hpp"

#include <array>
#include <cstddef>
#include <limits>

namespace pagoda::c {

namespace {

constexpr std::array all_types{
#define PAGODA_ITEM(name, ...) DType::name,
    PAGODA_FOR_EACH_TYPE(PAGODA_ITEM)
#undef PAGODA_ITEM
};
static_assert(PAGODA_FP64 == int(DType::fp64) + 1 && PAGODA_FP32 == int(DType::fp32) + 1 &&
              PAGODA_FP16 == int(DType::fp16) + 1 && PAGODA_BF16 == int(DType::bf16) + 1 &&
              PAGODA_FP8_E4M3 == int(DType::fp8_e4m3) + 1 && PAGODA_FP8_E5M2 == int(DType::fp8_e5m2) + 1 &&
              PAGODA_INT8 == int(DType::int8) + 1 && PAGODA_INT4 == int(DType::int4) + 1 &&
              PAGODA_MXFP4 == int(DType::mxfp4) + 1 && PAGODA_NVFP4 == int(DType::nvfp4) + 1 &&
              PAGODA_FP8_DS_MLA == int(DType::fp8_ds_mla) + 1);
static_assert(all_types.size() == PAGODA_FP8_DS_MLA, "a type of detail/type_table.hpp is missing in pagoda_type_code");

/// The code of the block scales of a type; 0: it has none.
pagoda_type block_scale_code(DType type) {
  const auto code = []<class S>(S*) -> pagoda_type {
    if constexpr (std::is_void_v<S>) {
      return 0;
    } else if constexpr (std::is_same_v<S, e8m0_t>) {
      return PAGODA_E8M0;
    } else {
      return code_of(dtype_v<S>);
    }
  };
  switch (type) {
#define PAGODA_CASE(name, T, bits, dims, roundoff, nan, scales, block, S, ...) \
  case DType::name:                                                            \
    return code(static_cast<S*>(nullptr));
    PAGODA_FOR_EACH_TYPE(PAGODA_CASE)
#undef PAGODA_CASE
  }
  return 0;
}

/// Rank, extents, strides, memory and address; the type is the caller's to set. bytes: of an element.
TensorRef shape_of(const char* who, const char* name, const pagoda_tensor& t, int rank, int bytes, const Reach& reach) {
  require(t.rank == rank, who, ": ", name, ".rank is ", t.rank, "; allowed: ", rank);
  require(t.reserved == 0, who, ": ", name, ".reserved is ", t.reserved, "; allowed: 0");
  TensorRef ref;
  ref.data = t.data, ref.rank = rank;
  bool dense = true, empty = false;
  for (int axis = 0; axis < rank; ++axis) {
    require(t.extent[axis] >= 0, who, ": ", name, ".extent[", axis, "] is ", t.extent[axis], "; allowed: 0 or more");
    require(t.stride[axis] >= 0, who, ": ", name, ".stride[", axis, "] is ", t.stride[axis], "; allowed: 0 or more");
    dense            = dense && t.stride[axis] == 0;
    empty            = empty || t.extent[axis] == 0;
    ref.extent[axis] = t.extent[axis], ref.stride[axis] = t.stride[axis];
  }
  std::int64_t next = 1;
  for (int axis = rank - 1; dense && axis >= 0; --axis) {
    ref.stride[axis]          = next;
    const std::int64_t extent = std::max<std::int64_t>(t.extent[axis], 1);
    require(extent <= std::numeric_limits<std::int64_t>::max() / 64 / next, who, ": ", name,
            " has 2^57 elements or more; allowed: fewer");
    next *= extent;
  }
  // The same limit on what strides reach, so that sums of offsets in bytes fit 64 bits. Also of empty arrays: plans add
  // the offsets of their axes.
  std::int64_t room = std::numeric_limits<std::int64_t>::max() / 64;
  for (int axis = 0; axis < rank; ++axis) {
    const std::int64_t steps = std::max<std::int64_t>(t.extent[axis] - 1, 0);
    require(steps == 0 || ref.stride[axis] <= room / steps, who, ": ", name,
            " spans 2^57 elements or more; allowed: fewer");
    room -= steps * ref.stride[axis];
  }
  require(t.data || empty, who, ": ", name, ".data is NULL; allowed: memory for all of its elements");
  require(reinterpret_cast<std::uintptr_t>(t.data) % static_cast<std::uintptr_t>(bytes) == 0, who, ": ", name,
          ".data is ", t.data, "; allowed: multiples of ", bytes, ", the bytes of an element");
  require(t.memory >= PAGODA_MEMORY_UNSPECIFIED && t.memory <= PAGODA_MEMORY_SHARED, who, ": ", name, ".memory is ",
          t.memory, "; allowed: a value of pagoda_memory_code, 0 to 3");
  require((t.memory != PAGODA_MEMORY_HOST || reach.host) && (t.memory != PAGODA_MEMORY_DEVICE || reach.device), who,
          ": ", name, ".memory is ", t.memory == PAGODA_MEMORY_HOST ? "PAGODA_MEMORY_HOST" : "PAGODA_MEMORY_DEVICE",
          "; allowed: memory that ", reach.space, " can reach");
  return ref;
}

/// The axes of HND order in NHD order.
TensorRef reordered(TensorRef t, KVOrder order) {
  if (order == KVOrder::HND) std::swap(t.extent[1], t.extent[2]), std::swap(t.stride[1], t.stride[2]);
  return t;
}

/// The float scales of keys or values, of rank 0, 1 or 3, as three axes.
Array<3> scales_of(const char* who, const char* name, const pagoda_tensor& t, KVOrder order, const Reach& reach) {
  require(t.type == PAGODA_FP32, who, ": ", name, ".type is ", t.type, " (", pagoda_type_name(t.type),
          "); allowed: PAGODA_FP32");
  require(t.rank == 0 || t.rank == 1 || t.rank == 3, who, ": ", name, ".rank is ", t.rank,
          "; allowed: 0 (one for all), 1 (kv head) or 3 (page or sequence, token, kv head)");
  TensorRef ref = shape_of(who, name, t, t.rank, sizeof(float), reach);
  ref.type      = DType::fp32;
  if (t.rank == 3) return {reordered(ref, order)};
  if (t.rank == 1) ref.extent[2] = ref.extent[0], ref.stride[2] = ref.stride[0];
  const int first_given = t.rank == 1 ? 2 : 3;
  for (int axis = 0; axis < first_given; ++axis) ref.extent[axis] = 1, ref.stride[axis] = 1;
  ref.rank = 3;
  return {ref};
}

ScaleRef scale(const char* who, const char* side, const Array<4>& cache, const pagoda_tensor& floats,
               const pagoda_tensor& blocks, KVOrder order, const Reach& reach) {
  const std::string name       = std::string("kv.") + side + "_scale",
                    block_name = std::string("kv.") + side + "_block_scale";
  ScaleRef ref;
  if (floats.data) ref = scale_ref(who, side, scales_of(who, name.c_str(), floats, order, reach), cache);
  if (!blocks.data) return ref;
  const DType type         = cache.ref.type;
  const pagoda_type wanted = block_scale_code(type);
  require(wanted != 0, who, ": ", block_name, " is given, and kv.", side, " holds ", name_of(type),
          "; allowed: no block scales for this type");
  require(blocks.type == wanted, who, ": ", block_name, ".type is ", blocks.type, " (", pagoda_type_name(blocks.type),
          "); allowed: ", wanted, " (", pagoda_type_name(wanted), "), for ", name_of(type), " elements");
  const TensorRef b        = reordered(shape_of(who, block_name.c_str(), blocks, 4, 1, reach), order);
  const std::int64_t count = blocks_of(type, static_cast<int>(cache.ref.extent[3]) * dims_per_element(type));
  for (int axis = 0; axis < 4; ++axis) {
    const std::int64_t extent = axis < 3 ? cache.ref.extent[axis] : count;
    require(b.extent[axis] == extent, who, ": axis ", axis, " of ", block_name,
            " (page or sequence, token, kv head, block) has extent ", b.extent[axis], "; allowed: ", extent);
    ref.block_stride[axis] = b.stride[axis];
  }
  ref.blocks = b.data;
  return ref;
}

void at_least_0(const char* who, const char* name, std::int64_t value) {
  require(value >= 0 && value <= std::numeric_limits<int>::max(), who, ": kv.", name, " is ", value,
          "; allowed: 0 to 2^31 - 1");
}

}  // namespace

const DType* find_type(pagoda_type code) {
  return code >= 1 && code <= static_cast<int>(all_types.size()) ? &all_types[code - 1] : nullptr;
}

pagoda_type code_of(DType type) { return static_cast<pagoda_type>(type) + 1; }

TensorRef tensor(const char* who, const char* name, const pagoda_tensor* given, int rank, const Reach& reach) {
  const pagoda_tensor& t  = not_null(who, name, given);
  const DType* const type = find_type(t.type);
  require(type != nullptr, who, ": ", name, ".type is ", t.type, "; allowed: a value of pagoda_type_code, 1 to ",
          all_types.size());
  TensorRef ref = shape_of(who, name, t, rank, size_of(*type), reach);
  ref.type      = *type;
  return ref;
}

KVOrder order_of(const char* who, const char* name, pagoda_order order) {
  require(order == PAGODA_NHD || order == PAGODA_HND, who, ": ", name, " is ", order,
          "; allowed: PAGODA_NHD (0) or PAGODA_HND (1)");
  return order == PAGODA_NHD ? KVOrder::NHD : KVOrder::HND;
}

Array<4> cache_tensor(const char* who, const char* name, const pagoda_tensor* given, KVOrder order,
                      const Reach& reach) {
  const TensorRef t = reordered(tensor(who, name, given, 4, reach), order);
  require(t.extent[3] <= std::numeric_limits<int>::max() / dims_per_element(t.type), who, ": axis 3 of ", name,
          " has extent ", t.extent[3], "; allowed: below 2^31 dims");
  return {t};
}

Cache cache(const char* who, const pagoda_cache* given, const Reach& reach) {
  const auto c              = read_struct(who, "kv", given, offsetof(pagoda_cache, block_table));
  const KVOrder order       = order_of(who, "kv.order", c.order);
  const KVOrder scale_order = order_of(who, "kv.scale_order", c.scale_order);
  const Array<4> k          = cache_tensor(who, "kv.k", &c.k, order, reach);
  const Array<4> v          = cache_tensor(who, "kv.v", &c.v, order, reach);
  check_extents(who, k, v);
  require(c.layout >= PAGODA_CONTIGUOUS && c.layout <= PAGODA_PAGED_CSR, who, ": kv.layout is ", c.layout,
          "; allowed: a value of pagoda_layout_code, 0 to 2");
  at_least_0(who, "num_sequences", c.num_sequences);
  if (c.sequence_ids) at_least_0(who, "batch", c.batch);
  CacheRef r;
  r.k = k.ref, r.v = v.ref;
  r.k_scale  = scale(who, "k", k, c.k_scale, c.k_block_scale, scale_order, reach);
  r.v_scale  = scale(who, "v", v, c.v_scale, c.v_block_scale, scale_order, reach);
  r.seq_lens = c.seq_lens, r.num_sequences = c.num_sequences;
  r.sequence_ids = c.sequence_ids, r.batch = c.sequence_ids ? c.batch : c.num_sequences;
  r.paged = c.layout != PAGODA_CONTIGUOUS;
  if (c.layout == PAGODA_CONTIGUOUS) {
    require(c.num_sequences == k.ref.extent[0], who, ": kv.num_sequences is ", c.num_sequences,
            "; allowed: ", k.ref.extent[0], ", the sequences of kv.k");
    r.max_seq_len = static_cast<int>(k.ref.extent[1]);
  } else if (c.layout == PAGODA_PAGED) {
    at_least_0(who, "max_pages", c.max_pages);
    const std::int64_t row = c.block_table_stride[0], page = c.block_table_stride[1];
    require(row >= 0 && page >= 0, who, ": kv.block_table_stride is {", row, ", ", page, "}; allowed: 0 or more");
    const bool dense = row == 0 && page == 0;
    r.block_table = c.block_table, r.table_pages = c.max_pages;
    r.table_row_stride = dense ? c.max_pages : row, r.table_page_stride = dense ? 1 : page;
    r.max_seq_len =
        static_cast<int>(std::min<std::int64_t>(c.max_pages * k.ref.extent[1], std::numeric_limits<int>::max()));
  } else {
    at_least_0(who, "max_seq_len", c.max_seq_len);
    require(c.num_page_indices >= 0, who, ": kv.num_page_indices is ", c.num_page_indices, "; allowed: 0 or more");
    require(c.page_indptr != nullptr, who, ": kv.page_indptr is NULL; allowed: memory for ",
            std::int64_t(c.num_sequences) + 1, " entries");
    r.page_indptr = c.page_indptr, r.block_table = c.page_indices, r.table_pages = c.num_page_indices;
    r.max_seq_len = c.max_seq_len;
  }
  return {r};
}

pagoda_tensor describe_tensor(const TensorRef& t) {
  pagoda_tensor to{};
  to.data = t.data, to.type = code_of(t.type), to.rank = t.rank;
  std::copy(t.extent.begin(), t.extent.end(), to.extent);
  std::copy(t.stride.begin(), t.stride.end(), to.stride);
  return to;
}

pagoda_cache describe_cache(const CacheRef& kv) {
  pagoda_cache c{};
  c.layout = kv.paged ? PAGODA_PAGED : PAGODA_CONTIGUOUS;
  c.k = describe_tensor(kv.k), c.v = describe_tensor(kv.v);
  c.seq_lens = kv.seq_lens, c.num_sequences = kv.num_sequences;
  c.sequence_ids = kv.sequence_ids, c.batch = kv.batch;
  if (kv.paged) {
    c.block_table = kv.block_table, c.max_pages = kv.table_pages;
    c.block_table_stride[0] = kv.table_row_stride, c.block_table_stride[1] = kv.table_page_stride;
  }
  return c;
}

pagoda_decode_options read_options(const char* who, const pagoda_decode_options* given) {
  const auto o = read_struct(who, "options", given, offsetof(pagoda_decode_options, max_batch));
  require(o.window >= 0, who, ": options.window is ", o.window, "; allowed: 0 (all tokens) or more");
  require(o.max_query_len >= 0, who, ": options.max_query_len is ", o.max_query_len, "; allowed: 0 (one) or more");
  require(o.max_entry_queries >= 0, who, ": options.max_entry_queries is ", o.max_entry_queries,
          "; allowed: 0 (one) or more");
  require(o.exactness >= 0 && o.exactness <= PAGODA_REPRODUCIBLE, who, ": options.exactness is ", o.exactness,
          "; allowed: PAGODA_FAST (0), PAGODA_BATCH_INVARIANT (1) or PAGODA_REPRODUCIBLE (2)");
  require(!o.cu_seqlens_q || o.num_cu_seqlens_q >= 1, who, ": options.num_cu_seqlens_q is ", o.num_cu_seqlens_q,
          "; allowed: the entries of cu_seqlens_q, 1 or more");
  return o;
}

}  // namespace pagoda::c

using namespace pagoda::c;

const char* pagoda_type_name(pagoda_type type) {
  if (type == PAGODA_E8M0) return "e8m0";
  const pagoda::DType* const known = find_type(type);
  return known ? pagoda::name_of(*known) : "unknown type";
}

std::size_t pagoda_type_size(pagoda_type type) {
  if (type == PAGODA_E8M0) return 1;
  const pagoda::DType* const known = find_type(type);
  return known ? static_cast<std::size_t>(pagoda::size_of(*known)) : 0;
}

std::int32_t pagoda_type_is_enabled(pagoda_type type) {
  switch (type) {
#define PAGODA_CASE(name) case static_cast<int>(pagoda::DType::name) + 1:
    PAGODA_FOR_EACH_ENABLED_TYPE(PAGODA_CASE)
#undef PAGODA_CASE
    return 1;
    default:
      return 0;
  }
}
