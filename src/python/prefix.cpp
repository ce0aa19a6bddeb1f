// SPDX-License-Identifier: Apache-2.0
// Decodes that read shared prefixes once.
#include "src/python/options.hpp"
#include "src/python/rates.hpp"

#include <pagoda/pagoda_prefix.h>

#include <nanobind/stl/optional.h>

using namespace nanobind::literals;

namespace pagoda::python {

namespace {

class PrefixDecoder final : public Owned {
 public:
  PrefixDecoder(const Cache& cache, int max_entries, int max_states, const std::optional<std::string>& state_type,
                nb::object rates, std::uintptr_t stream, const nb::kwargs& options)
      : device_(cache.device()),
        head_dim_v_(cache.head_dim_v()),
        page_size_(cache.paged() ? cache.page_size() : 0),
        options_(who, cache.device(), stream, options) {
    pagoda_prefix_options o{};
    o.struct_size = sizeof o;
    o.max_entries = max_entries, o.max_states = max_states;
    if (state_type) o.state_type = type_by_name(who, "state_type", *state_type);
    Runtime::instance().start(device_);
    const pagoda_exec* const exec = Runtime::instance().exec(who, device_, stream);
    without_gil([&] { return pagoda_prefix_create(exec, cache.described(), options_.described(), &o, &decoder_); });
    if (rates.is_none()) return;
    try {
      set_rates(nb::cast<nb::dict>(rates));
    } catch (...) {
      leave();
      throw;
    }
  }
  ~PrefixDecoder() override { leave(); }

  bool plan(nb::handle seq_lens, nb::handle block_table, nb::handle page_indptr, nb::handle sequence_ids, int query_len,
            nb::handle cu_seqlens_q) {
    const Tables tables("pagoda.PrefixDecoder.plan", page_size_, seq_lens, block_table, page_indptr, sequence_ids,
                        query_len, cu_seqlens_q);
    std::int32_t install = 0;
    call([&]() -> Outcome { return pagoda_prefix_plan(decoder_, &tables.described, &install); });
    return install != 0;
  }
  bool install(std::uintptr_t stream) {
    const pagoda_exec* const exec = Runtime::instance().exec("pagoda.PrefixDecoder.install", device_, stream);
    std::int32_t packed           = 0;
    call([&]() -> Outcome { return pagoda_prefix_install(exec, decoder_, &packed); });
    return packed != 0;
  }
  void decode(nb::handle q, const Cache& cache, nb::handle out, nb::handle lse, std::uintptr_t stream) {
    const char* const here = "pagoda.PrefixDecoder.decode";
    const Array queries(here, "q", q, Access::read, stream), outputs(here, "out", out, Access::write, stream);
    const Array sums = Array::optional(here, "lse", lse, Access::write, stream);
    for (const auto& [name, array] : {std::pair("q", &queries), std::pair("out", &outputs), std::pair("lse", &sums)})
      array->require_on(here, name, device_, "the decoder's device");
    if (cache.device() != device_)
      refuse(here, ": the cache is on ", cache.device().name(), "; allowed: ", device_.name(),
             ", the decoder's device");
    const pagoda_exec* const exec = Runtime::instance().exec(here, device_, stream);
    call([&] {
      return finish(pagoda_prefix_decode(exec, decoder_, &queries.tensor(), cache.described(), &outputs.tensor(),
                                         sums.tensor_or_null()),
                    device_, exec);
    });
  }

  nb::dict report() {
    pagoda_prefix_report r{};
    r.struct_size = sizeof r;
    std::string because;
    call([&]() -> Outcome {
      const pagoda_status done = pagoda_prefix_get_report(decoder_, &r);
      if (done == PAGODA_SUCCESS && r.plain_because) because = r.plain_because;
      return done;
    });
    return report_as_dict(r, because);
  }
  bool packed() {
    std::int32_t yes = 0;
    call([&]() -> Outcome { return pagoda_prefix_packed(decoder_, &yes); });
    return yes != 0;
  }
  std::uint64_t graph_key() {
    std::uint64_t key = 0;
    call([&]() -> Outcome { return pagoda_prefix_graph_key(decoder_, &key); });
    return key;
  }
  std::string describe(bool lists) {
    std::string text;
    call([&]() -> Outcome {
      const char* const line = pagoda_prefix_describe(decoder_, lists ? 1 : 0);
      if (line) text = line;
      return line ? PAGODA_SUCCESS : PAGODA_INVALID_ARGUMENT;
    });
    return text;
  }
  nb::dict rates() { return rates_as_dict(read_rates()); }
  void set_rates(const nb::dict& to) {
    pagoda_device_rates r = read_rates();
    change_rates("pagoda.PrefixDecoder.set_rates", r, to);
    call([&]() -> Outcome { return pagoda_prefix_set_rates(decoder_, &r); });
  }
  int head_dim_v() const { return head_dim_v_; }
  std::string device() const { return device_.name(); }

 private:
  static constexpr const char* who = "pagoda.PrefixDecoder";

  /// The tables of a batch, in arrays on the host.
  struct Tables {
    Tables(const char* here, int page_size, nb::handle seq_lens, nb::handle block_table, nb::handle page_indptr,
           nb::handle sequence_ids, int query_len, nb::handle cu_seqlens_q)
        : lengths(here, "seq_lens", seq_lens, Access::read, 0),
          table(Array::optional(here, "block_table", block_table, Access::read, 0)),
          indptr(Array::optional(here, "page_indptr", page_indptr, Access::read, 0)),
          ids(Array::optional(here, "sequence_ids", sequence_ids, Access::read, 0)),
          counts(Array::optional(here, "cu_seqlens_q", cu_seqlens_q, Access::read, 0)) {
      for (const auto& [name, array] :
           {std::pair("seq_lens", &lengths), std::pair("block_table", &table), std::pair("page_indptr", &indptr),
            std::pair("sequence_ids", &ids), std::pair("cu_seqlens_q", &counts)})
        array->require_on(here, name, Device(), "as plans are made on the host");
      pagoda_batch_pages& t = described;
      t.struct_size         = sizeof t;
      t.seq_lens            = lengths.vector_of<std::int32_t>(here, "seq_lens");
      t.num_sequences = t.batch = size(lengths);
      t.query_len               = query_len;
      if (ids) t.sequence_ids = ids.vector_of<std::int32_t>(here, "sequence_ids"), t.batch = size(ids);
      if (counts) {
        t.cu_seqlens_q = counts.vector_of<std::int32_t>(here, "cu_seqlens_q");
        require_size(here, "cu_seqlens_q", size(counts), t.batch + 1);
      }
      if (table) t.page_size = page_size;
      if (table && indptr) {
        t.page_indptr = indptr.vector_of<std::int32_t>(here, "page_indptr");
        require_size(here, "page_indptr", size(indptr), t.num_sequences + 1);
        t.page_indices     = table.vector_of<std::int32_t>(here, "block_table");
        t.num_page_indices = size(table);
      } else if (table) {
        t.block_table = table.int_table(here, "block_table");
        require_size(here, "block_table", size(table), t.num_sequences);
        t.max_pages             = table.tensor().extent[1];
        t.block_table_stride[0] = table.tensor().stride[0], t.block_table_stride[1] = table.tensor().stride[1];
      } else if (indptr) {
        refuse(here, ": page_indptr is given alone; allowed: with block_table");
      }
    }
    static std::int32_t size(const Array& array) { return static_cast<std::int32_t>(array.tensor().extent[0]); }
    static void require_size(const char* here, const char* name, std::int32_t found, std::int32_t wanted) {
      if (found != wanted) refuse(here, ": ", name, " has ", found, " rows or entries; allowed: ", wanted);
    }

    Array lengths, table, indptr, ids, counts;
    pagoda_batch_pages described{};
  };

  pagoda_device_rates read_rates() {
    pagoda_device_rates r{};
    r.struct_size = sizeof r;
    call([&]() -> Outcome { return pagoda_prefix_get_rates(decoder_, &r); });
    return r;
  }
  void close() override {
    pagoda_prefix_destroy(decoder_);
    decoder_ = nullptr;
  }
  template <class F>
  void call(F&& f) {
    without_gil([&]() -> Outcome {
      const std::lock_guard lock(use);
      if (!decoder_) throw std::runtime_error("pagoda: the interpreter is exiting, and the decoder is closed");
      return f();
    });
  }

  Device device_;
  int head_dim_v_, page_size_;
  Options options_;
  pagoda_prefix_decoder* decoder_ = nullptr;
};

}  // namespace

void bind_prefix(nb::module_& m) {
  nb::class_<PrefixDecoder>(m, "PrefixDecoder", "Decodes that read shared prefixes once.")
      .def(
          "__init__",
          [](PrefixDecoder* self, const Cache& cache, int max_entries, int max_states,
             const std::optional<std::string>& state_type, nb::object rates, std::uintptr_t stream,
             const nb::kwargs& options) {
            new (self) PrefixDecoder(cache, max_entries, max_states, state_type, rates, stream, options);
          },
          "cache"_a, "max_entries"_a, "max_states"_a, "state_type"_a.none(), "rates"_a.none(), "stream"_a, "options"_a)
      .def("_plan", &PrefixDecoder::plan, "seq_lens"_a, "block_table"_a.none(), "page_indptr"_a.none(),
           "sequence_ids"_a.none(), "query_len"_a, "cu_seqlens_q"_a.none())
      .def("_install", &PrefixDecoder::install, "stream"_a)
      .def("_decode", &PrefixDecoder::decode, "q"_a, "cache"_a, "out"_a, "lse"_a.none(), "stream"_a)
      .def("_set_rates", &PrefixDecoder::set_rates, "rates"_a)
      .def("report", &PrefixDecoder::report, "What the last plan found: times, sizes, why decodes are plain.")
      .def("describe", &PrefixDecoder::describe, "lists"_a = false,
           "`Plan.describe` of the plan of plain decodes, or of lists.")
      .def_prop_ro("packed", &PrefixDecoder::packed, "Whether decodes read a list.")
      .def_prop_ro("graph_key", &PrefixDecoder::graph_key,
                   "Decodes of the same batch size and key may replay the same graph. 0: a plain decode.")
      .def_prop_ro("rates", &PrefixDecoder::rates, "The rates that planning predicts times from.")
      .def_prop_ro("head_dim_v", &PrefixDecoder::head_dim_v, "Dims of an output row.")
      .def_prop_ro("device", &PrefixDecoder::device, "\"cpu\" or \"cuda:0\".");
}

}  // namespace pagoda::python
