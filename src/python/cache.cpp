// SPDX-License-Identifier: Apache-2.0
#include "src/python/cache.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>

using namespace nanobind::literals;

namespace pagoda::python {

pagoda_order order_by_name(const char* who, const char* argument, const std::string& name) {
  if (name == "NHD") return PAGODA_NHD;
  if (name == "HND") return PAGODA_HND;
  refuse(who, ": ", argument, " is \"", name, "\"; allowed: \"NHD\" or \"HND\"");
}

int Cache::dims(const pagoda_tensor& t, bool values) {
  if (t.type == PAGODA_FP8_DS_MLA) return values ? 512 : 576;
  const bool pairs = t.type == PAGODA_INT4 || t.type == PAGODA_MXFP4 || t.type == PAGODA_NVFP4;
  return static_cast<int>(t.extent[3]) * (pairs ? 2 : 1);
}

const Array& Cache::keep(const char* name, nb::handle object, std::uintptr_t stream) {
  Array array(who_, name, object, Access::keep, stream);
  if (arrays_.empty()) device_ = array.device();
  array.require_on(who_, name, device_, "the device of k");
  return arrays_.emplace_back(std::move(array));
}

Cache::Cache(const char* who, bool paged, const Arguments& given) : who_(who) {
  kv_.struct_size     = sizeof kv_;
  kv_.order           = order_by_name(who, "order", given.order);
  kv_.scale_order     = order_by_name(who, "scale_order", given.scale_order);
  const auto elements = [&](const char* name, nb::handle object) {
    const Array& array = keep(name, object, given.stream);
    if (given.kv_type) return array.as(who, name, type_by_name(who, "kv_type", *given.kv_type));
    if (array.tensor().type == 0)
      refuse(
          who, ": ", name, " holds ", array.type_name(),
          "; allowed: float64, float32, float16, bfloat16, float8_e4m3fn, float8_e5m2, int8, or the bytes of another "
          "type with kv_type");
    return array.tensor();
  };
  kv_.k = elements("k", given.k);
  kv_.v = elements("v", given.v);
  for (const auto& [name, tensor] : {std::pair("k", &kv_.k), std::pair("v", &kv_.v)})
    if (tensor->rank != 4) refuse(who, ": ", name, " has ", tensor->rank, " axes; allowed: 4");

  const Array& lengths = keep("seq_lens", given.seq_lens, given.stream);
  kv_.seq_lens         = lengths.vector_of<std::int32_t>(who, "seq_lens");
  const auto entries   = [](const Array& array) { return array.tensor().extent[0]; };
  kv_.num_sequences    = static_cast<std::int32_t>(entries(lengths));
  if (!given.sequence_ids.is_none()) {
    const Array& ids = keep("sequence_ids", given.sequence_ids, given.stream);
    kv_.sequence_ids = ids.vector_of<std::int32_t>(who, "sequence_ids");
    kv_.batch        = static_cast<std::int32_t>(entries(ids));
  }
  const auto one_per_sequence = [&](const char* name, std::int64_t count, std::int64_t wanted) {
    if (count != wanted)
      refuse(who, ": ", name, " has ", count, " rows or entries; allowed: ", wanted, ", as seq_lens has ",
             kv_.num_sequences);
  };
  if (!paged) {
    kv_.layout = PAGODA_CONTIGUOUS;
  } else if (given.page_indptr.is_none()) {
    kv_.layout         = PAGODA_PAGED;
    const Array& table = keep("block_table", given.block_table, given.stream);
    kv_.block_table    = table.int_table(who, "block_table");
    one_per_sequence("block_table", entries(table), kv_.num_sequences);
    kv_.max_pages = table.tensor().extent[1];
    std::copy_n(table.tensor().stride, 2, kv_.block_table_stride);
    if (given.max_seq_len != 0)
      refuse(who, ": max_seq_len is given; allowed: only with page_indptr, as block_table bounds the lengths");
  } else {
    kv_.layout          = PAGODA_PAGED_CSR;
    const Array& indptr = keep("page_indptr", given.page_indptr, given.stream);
    kv_.page_indptr     = indptr.vector_of<std::int32_t>(who, "page_indptr");
    one_per_sequence("page_indptr", entries(indptr), std::int64_t(kv_.num_sequences) + 1);
    const Array& pages   = keep("block_table", given.block_table, given.stream);
    kv_.page_indices     = pages.vector_of<std::int32_t>(who, "block_table");
    kv_.num_page_indices = entries(pages);
    kv_.max_seq_len      = given.max_seq_len;
    if (given.max_seq_len <= 0)
      refuse(who, ": max_seq_len is ", given.max_seq_len,
             "; allowed: with page_indptr, the tokens of the longest sequence");
  }

  const auto scales = [&](const char* name, nb::handle object, pagoda_tensor& to) {
    if (!object.is_none()) to = keep(name, object, given.stream).as(who, name, PAGODA_FP32);
  };
  scales("k_scale", given.k_scale, kv_.k_scale);
  scales("v_scale", given.v_scale, kv_.v_scale);
  const auto block_scales = [&](const char* name, nb::handle object, pagoda_type type, pagoda_tensor& to) {
    if (object.is_none()) return;
    if (type != PAGODA_MXFP4 && type != PAGODA_NVFP4)
      refuse(who, ": ", name, " is given, and the cache holds ", pagoda_type_name(type),
             "; allowed: for mxfp4 and nvfp4");
    to = keep(name, object, given.stream).as(who, name, type == PAGODA_MXFP4 ? PAGODA_E8M0 : PAGODA_FP8_E4M3);
  };
  block_scales("k_block_scale", given.k_block_scale, kv_.k.type, kv_.k_block_scale);
  block_scales("v_block_scale", given.v_block_scale, kv_.v.type, kv_.v_block_scale);
}

Cache::Cache(const pagoda_cache& described, Device device, nb::object pool)
    : who_("pagoda.Pool.cache"), pool_(std::move(pool)), kv_(described), device_(device) {}

void bind_cache(nb::module_& m) {
  nb::class_<Cache>(m, "Cache", "Keys and values of some sequences, described once for many calls.")
      .def(
          "__init__",
          [](Cache* self, bool paged, nb::object k, nb::object v, nb::object seq_lens, nb::object block_table,
             nb::object page_indptr, nb::object sequence_ids, nb::object k_scale, nb::object v_scale,
             nb::object k_block_scale, nb::object v_block_scale, const std::string& order,
             const std::string& scale_order, std::optional<std::string> kv_type, int max_seq_len,
             std::uintptr_t stream) {
            new (self) Cache(paged ? "pagoda.PagedCache" : "pagoda.ContiguousCache", paged,
                             {k, v, seq_lens, block_table, page_indptr, sequence_ids, k_scale, v_scale, k_block_scale,
                              v_block_scale, order, scale_order, std::move(kv_type), max_seq_len, stream});
          },
          "paged"_a, nb::kw_only(), "k"_a.none(), "v"_a.none(), "seq_lens"_a.none(), "block_table"_a = nb::none(),
          "page_indptr"_a = nb::none(), "sequence_ids"_a = nb::none(), "k_scale"_a = nb::none(),
          "v_scale"_a = nb::none(), "k_block_scale"_a = nb::none(), "v_block_scale"_a = nb::none(), "order"_a = "NHD",
          "scale_order"_a = "NHD", "kv_type"_a = nb::none(), "max_seq_len"_a = 0, "stream"_a = 0)
      .def_prop_ro("batch", &Cache::batch, "Batch entries of a decode.")
      .def_prop_ro("num_kv_heads", &Cache::num_kv_heads, "KV heads.")
      .def_prop_ro("page_size", &Cache::page_size, "Tokens of a page; contiguous: tokens that a sequence can hold.")
      .def_prop_ro("head_dim", &Cache::head_dim, "Dims of a key.")
      .def_prop_ro("head_dim_v", &Cache::head_dim_v, "Dims of a value.")
      .def_prop_ro("kv_type", &Cache::kv_type, "Type of the keys, such as \"fp16\".")
      .def_prop_ro(
          "device", [](const Cache& cache) { return cache.device().name(); }, "\"cpu\" or \"cuda:0\".")
      .def_prop_ro(
          "order", [](const Cache& cache) { return cache.order() == PAGODA_NHD ? "NHD" : "HND"; },
          "Order of the token and head axes.");
}

}  // namespace pagoda::python
