// SPDX-License-Identifier: Apache-2.0
// Memory for caches, and arithmetic for their sizes.
#include "src/python/memory.hpp"

#include "src/python/cache.hpp"

#include <pagoda/pagoda_memory.h>

#include <nanobind/stl/string.h>

using namespace nanobind::literals;

namespace pagoda::python {

namespace {

class CacheMemory final : public Owned {
 public:
  CacheMemory(bool paged, const std::string& dtype, int num_pages, int page_size, int num_kv_heads, int head_dim,
              int head_dim_v, const std::string& order, std::int32_t device_type, std::int32_t device_id,
              std::uintptr_t stream)
      : device_{device_type, device_id} {
    const char* const who = paged ? "pagoda.make_paged_cache" : "pagoda.make_contiguous_cache";
    pagoda_cache_shape s{};
    s.struct_size = sizeof s;
    s.layout      = paged ? PAGODA_PAGED : PAGODA_CONTIGUOUS;
    s.type        = type_by_name(who, "dtype", dtype);
    s.order       = order_by_name(who, "order", order);
    s.num_pages = num_pages, s.page_size = page_size, s.num_kv_heads = num_kv_heads;
    s.head_dim = head_dim, s.head_dim_v = head_dim_v;
    Runtime::instance().start(device_);
    const pagoda_exec* const exec = Runtime::instance().exec(who, device_, stream);
    without_gil([&] { return finish(pagoda_cache_memory_create(exec, &s, &memory_, &k_, &v_), device_, exec); });
  }
  ~CacheMemory() override { leave(); }

  nb::ndarray<nb::array_api> k(nb::handle self) const { return array_of(k_, device_, self); }
  nb::ndarray<nb::array_api> v(nb::handle self) const { return array_of(v_, device_, self); }
  std::string kv_type() const { return pagoda_type_name(k_.type); }
  std::string device() const { return device_.name(); }

 private:
  void close() override {
    pagoda_cache_memory_destroy(memory_);
    memory_ = nullptr;
  }

  Device device_;
  pagoda_cache_memory* memory_ = nullptr;
  pagoda_tensor k_{}, v_{};
};

std::int64_t bytes_per_token(int num_kv_heads, int head_dim, const std::string& dtype, int head_dim_v) {
  const pagoda_type type = type_by_name("pagoda.bytes_per_token", "dtype", dtype);
  std::int64_t bytes     = 0;
  Outcome(pagoda_bytes_per_token(num_kv_heads, head_dim, head_dim_v, type, &bytes)).raise();
  return bytes;
}

std::int64_t latent_bytes_per_token(int kv_lora_rank, int rope_dim, const std::string& dtype) {
  const pagoda_type type = type_by_name("pagoda.latent_bytes_per_token", "dtype", dtype);
  std::int64_t bytes     = 0;
  Outcome(pagoda_latent_bytes_per_token(kv_lora_rank, rope_dim, type, &bytes)).raise();
  return bytes;
}

std::int64_t reserved_tokens(std::int64_t seq_len, std::int64_t page_size) {
  std::int64_t tokens = 0;
  Outcome(pagoda_reserved_tokens(seq_len, page_size, &tokens)).raise();
  return tokens;
}

double waste_fraction(std::int64_t seq_len, std::int64_t page_size) {
  double fraction = 0;
  Outcome(pagoda_waste_fraction(seq_len, page_size, &fraction)).raise();
  return fraction;
}

std::int64_t sequences_that_fit(std::int64_t budget_bytes, std::int64_t token_bytes, std::int64_t seq_len,
                                std::int64_t page_size) {
  std::int64_t sequences = 0;
  Outcome(pagoda_sequences_that_fit(budget_bytes, token_bytes, seq_len, page_size, &sequences)).raise();
  return sequences;
}

}  // namespace

void bind_memory(nb::module_& m) {
  nb::class_<CacheMemory>(m, "CacheMemory", "Memory of keys and values, aligned for the fastest decodes.")
      .def(nb::init<bool, const std::string&, int, int, int, int, int, const std::string&, std::int32_t, std::int32_t,
                    std::uintptr_t>(),
           "paged"_a, nb::kw_only(), "dtype"_a, "num_pages"_a, "page_size"_a, "num_kv_heads"_a, "head_dim"_a,
           "head_dim_v"_a, "order"_a, "device_type"_a, "device_id"_a, "stream"_a)
      .def_prop_ro(
          "k", [](nb::handle self) { return nb::cast<CacheMemory&>(self).k(self); },
          nb::for_getter(nb::sig("def k(self) -> object")), "The keys as a DLPack array, without a copy.")
      .def_prop_ro(
          "v", [](nb::handle self) { return nb::cast<CacheMemory&>(self).v(self); },
          nb::for_getter(nb::sig("def v(self) -> object")), "The values, as `k`.")
      .def_prop_ro("kv_type", &CacheMemory::kv_type, "Type of the elements, such as \"fp16\".")
      .def_prop_ro("device", &CacheMemory::device, "\"cpu\" or \"cuda:0\".");
  m.def("bytes_per_token", &bytes_per_token, "num_kv_heads"_a, "head_dim"_a, "dtype"_a, "head_dim_v"_a);
  m.def("latent_bytes_per_token", &latent_bytes_per_token, "kv_lora_rank"_a, "rope_dim"_a, "dtype"_a);
  m.def("reserved_tokens", &reserved_tokens, "seq_len"_a, "page_size"_a);
  m.def("waste_fraction", &waste_fraction, "seq_len"_a, "page_size"_a);
  m.def("sequences_that_fit", &sequences_that_fit, "budget_bytes"_a, "token_bytes"_a, "seq_len"_a, "page_size"_a);
}

}  // namespace pagoda::python
