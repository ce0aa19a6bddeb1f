// SPDX-License-Identifier: Apache-2.0
// Decodes with shared prefixes of the C interface.
#include <pagoda/pagoda_prefix.h>

#include "src/c/prefix_structs.hpp"
#include "src/c/tensors.hpp"

#include <cstddef>
#include <limits>

using namespace pagoda::c;

namespace {

template <class Space>
using DecoderOf = pagoda::PrefixDecoder<Space>;

template <class Handle, class F>
void with_decoder(const char* who, Handle* handle, F&& f) {
  std::visit(f, not_null(who, "decoder", handle).decoder);
}

/// The same, with the decoder's instance behind exec.
template <class F>
void with_decoder(const char* who, const pagoda_exec* exec, pagoda_prefix_decoder* handle, F&& f) {
  with_decoder(who, handle,
               [&]<class Space>(DecoderOf<Space>& decoder) { f(decoder, exec_of<Space>(who, exec, "decoder")); });
}

void set(std::int32_t* to, bool value) {
  if (to) *to = value ? 1 : 0;
}

pagoda::BatchPages tables_of(const char* who, const pagoda_batch_pages* given) {
  const auto t        = read_struct(who, "tables", given, offsetof(pagoda_batch_pages, block_table));
  const auto at_least = [&](const char* name, std::int64_t value) {
    require(value >= 0 && value <= std::numeric_limits<int>::max(), who, ": tables.", name, " is ", value,
            "; allowed: 0 to 2^31 - 1");
  };
  at_least("batch", t.batch), at_least("num_sequences", t.num_sequences), at_least("page_size", t.page_size);
  at_least("query_len", t.query_len), at_least("max_pages", t.max_pages);
  at_least("num_page_indices", t.num_page_indices);
  require(t.seq_lens || t.num_sequences == 0, who, ": tables.seq_lens is NULL; allowed: memory for ", t.num_sequences,
          " lengths");
  const int forms = (t.block_table != nullptr) + (t.page_indptr != nullptr) + (t.page_rows != nullptr);
  require(forms <= 1, who, ": tables has page ids in ", forms,
          " forms; allowed: one of block_table, page_indptr and page_rows");
  require(t.sequence_ids || t.batch <= t.num_sequences, who, ": tables.batch is ", t.batch, "; allowed: up to the ",
          t.num_sequences, " sequences, without sequence_ids");
  require(!t.page_indptr || t.page_indices || t.num_page_indices == 0, who,
          ": tables.page_indices is NULL; allowed: memory for ", t.num_page_indices, " page ids");
  const std::int64_t row = t.block_table_stride[0], page = t.block_table_stride[1];
  require(row >= 0 && page >= 0, who, ": tables.block_table_stride is {", row, ", ", page, "}; allowed: 0 or more");
  const bool dense = row == 0 && page == 0;
  pagoda::BatchPages to;
  to.batch = t.batch, to.num_sequences = t.num_sequences, to.page_size = t.page_size;
  to.query_len = t.query_len == 0 ? 1 : t.query_len;
  to.seq_lens = t.seq_lens, to.sequence_ids = t.sequence_ids, to.cu_seqlens_q = t.cu_seqlens_q;
  to.block_table = t.block_table, to.max_pages = static_cast<int>(t.max_pages);
  to.row_stride = dense ? t.max_pages : row, to.page_stride = dense ? 1 : page;
  to.page_indptr = t.page_indptr, to.page_indices = t.page_indices, to.num_indices = t.num_page_indices;
  to.page_rows = t.page_rows;
  return to;
}

}  // namespace

pagoda_status pagoda_prefix_create(const pagoda_exec* exec, const pagoda_cache* kv,
                                   const pagoda_decode_options* options, const pagoda_prefix_options* prefix,
                                   pagoda_prefix_decoder** decoder) {
  return guarded([&] {
    const char* const who = "pagoda_prefix_create";
    not_null(who, "decoder", decoder);
    with_exec(who, exec, [&]<class Space>(const Space& instance) {
      const Cache described = cache(who, kv, Reach::of<Space>());
      const auto o          = read_options(who, options);
      require(!o.workspace && o.workspace_bytes == 0, who,
              ": options.workspace is given; allowed: NULL, as the decoder allocates its own");
      require(o.max_entries == 0, who, ": options.max_entries is ", o.max_entries,
              "; allowed: 0, as the decoder makes its lists");
      *decoder = make_handle<pagoda_prefix_decoder>(
          DecoderOf<Space>(instance, described.ref(), decode_options<Space>(o), prefix_options_of(who, prefix)),
          std::string());
    });
  });
}

void pagoda_prefix_destroy(pagoda_prefix_decoder* decoder) { destroy_handle(decoder); }

pagoda_status pagoda_prefix_plan(pagoda_prefix_decoder* decoder, const pagoda_batch_pages* tables,
                                 std::int32_t* install) {
  return guarded([&] {
    const char* const who = "pagoda_prefix_plan";
    with_decoder(who, decoder, [&](auto& d) { set(install, d.plan(tables_of(who, tables))); });
  });
}

pagoda_status pagoda_prefix_install(const pagoda_exec* exec, pagoda_prefix_decoder* decoder, std::int32_t* packed) {
  return guarded([&] {
    with_decoder("pagoda_prefix_install", exec, decoder,
                 [&](auto& d, const auto& instance) { set(packed, d.install(instance)); });
  });
}

pagoda_status pagoda_prefix_update(const pagoda_exec* exec, pagoda_prefix_decoder* decoder,
                                   const pagoda_batch_pages* tables, std::int32_t* packed) {
  return guarded([&] {
    const char* const who = "pagoda_prefix_update";
    with_decoder(who, exec, decoder,
                 [&](auto& d, const auto& instance) { set(packed, d.update(instance, tables_of(who, tables))); });
  });
}

pagoda_status pagoda_prefix_decode(const pagoda_exec* exec, pagoda_prefix_decoder* decoder, const pagoda_tensor* q,
                                   const pagoda_cache* kv, const pagoda_tensor* out, const pagoda_tensor* lse) {
  return guarded([&] {
    const char* const who = "pagoda_prefix_decode";
    with_decoder(who, exec, decoder, [&]<class Space>(DecoderOf<Space>& d, const Space& instance) {
      const Reach reach = Reach::of<Space>();
      d.decode(instance, array<3>(who, "q", q, reach), cache(who, kv, reach), array<3>(who, "out", out, reach),
               optional_lse<2>(who, "lse", lse, reach));
    });
  });
}

pagoda_status pagoda_prefix_get_report(const pagoda_prefix_decoder* decoder, pagoda_prefix_report* report) {
  return guarded([&] {
    const char* const who = "pagoda_prefix_get_report";
    with_decoder(who, decoder, [&](const auto& d) { write_report(who, d.report(), report); });
  });
}

pagoda_status pagoda_prefix_packed(const pagoda_prefix_decoder* decoder, std::int32_t* packed) {
  return guarded([&] {
    const char* const who = "pagoda_prefix_packed";
    std::int32_t& to      = not_null(who, "packed", packed);
    with_decoder(who, decoder, [&](const auto& d) { to = d.packed() ? 1 : 0; });
  });
}

pagoda_status pagoda_prefix_graph_key(const pagoda_prefix_decoder* decoder, std::uint64_t* key) {
  return guarded([&] {
    const char* const who = "pagoda_prefix_graph_key";
    std::uint64_t& to     = not_null(who, "key", key);
    with_decoder(who, decoder, [&](const auto& d) { to = d.graph_key(); });
  });
}

const char* pagoda_prefix_describe(pagoda_prefix_decoder* decoder, std::int32_t lists) {
  return guarded_pointer([&] {
    const char* const who = "pagoda_prefix_describe";
    require(lists == 0 || lists == 1, who, ": lists is ", lists, "; allowed: 0 or 1");
    with_decoder(who, decoder,
                 [&](auto& d) { decoder->description = (lists ? d.list_plan() : d.plain_plan()).describe(); });
    return static_cast<const char*>(decoder->description.c_str());
  });
}

pagoda_status pagoda_prefix_get_rates(const pagoda_prefix_decoder* decoder, pagoda_device_rates* rates) {
  return guarded([&] {
    const char* const who = "pagoda_prefix_get_rates";
    with_decoder(who, decoder, [&](const auto& d) { write_rates(who, d.rates(), rates); });
  });
}

pagoda_status pagoda_prefix_set_rates(pagoda_prefix_decoder* decoder, const pagoda_device_rates* rates) {
  return guarded([&] {
    const char* const who = "pagoda_prefix_set_rates";
    with_decoder(who, decoder, [&](auto& d) { d.set_rates(rates_of(who, rates)); });
  });
}
