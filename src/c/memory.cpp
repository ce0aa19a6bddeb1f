// SPDX-License-Identifier: Apache-2.0
// Memory for caches, and arithmetic for their sizes, of the C interface.
#include <pagoda/pagoda_memory.h>

#include "src/c/tensors.hpp"

#include <cstddef>
#include <limits>

using namespace pagoda::c;

namespace {

/// Calls f with a null pointer of the element type, which need not be enabled: no kernel reads it.
template <class F>
void with_element(pagoda::DType type, F&& f) {
  switch (type) {
#define PAGODA_CASE(name, ...) \
  case pagoda::DType::name:    \
    return f(static_cast<pagoda::detail::type_##name*>(nullptr));
    PAGODA_FOR_EACH_TYPE(PAGODA_CASE)
#undef PAGODA_CASE
  }
}

pagoda::DType type_of(const char* who, const char* name, pagoda_type code) {
  const pagoda::DType* const type = find_type(code);
  require(type != nullptr, who, ": ", name, " is ", code, "; allowed: a value of pagoda_type_code, ", PAGODA_FP64,
          " to ", PAGODA_FP8_DS_MLA);
  return *type;
}

template <class View>
pagoda_tensor describe(const View& view) {
  pagoda_tensor t = describe_tensor(pagoda::tensor_ref(view));
  t.memory        = Kokkos::SpaceAccessibility<Kokkos::HostSpace, typename View::memory_space>::accessible
                        ? PAGODA_MEMORY_HOST
                        : PAGODA_MEMORY_DEVICE;
  return t;
}

void at_least(const char* who, const char* name, std::int64_t value, std::int64_t least) {
  require(value >= least, who, ": ", name, " is ", value, "; allowed: ", least, " or more");
}

}  // namespace

pagoda_status pagoda_cache_memory_create(const pagoda_exec* exec, const pagoda_cache_shape* shape,
                                         pagoda_cache_memory** memory, pagoda_tensor* k, pagoda_tensor* v) {
  return guarded([&] {
    const char* const who = "pagoda_cache_memory_create";
    not_null(who, "memory", memory);
    pagoda_tensor& to_k = not_null(who, "k", k);
    pagoda_tensor& to_v = not_null(who, "v", v);
    const auto s        = read_struct(who, "shape", shape, offsetof(pagoda_cache_shape, head_dim_v));
    require(s.layout >= PAGODA_CONTIGUOUS && s.layout <= PAGODA_PAGED_CSR, who, ": shape.layout is ", s.layout,
            "; allowed: a value of pagoda_layout_code, 0 to 2");
    const auto order = order_of(who, "shape.order", s.order);
    const auto type  = type_of(who, "shape.type", s.type);
    with_exec(who, exec, [&]<class Space>(const Space& instance) {
      with_element(type, [&]<class T>(T*) {
        const auto keep = [&](const auto& cache) {
          auto* const made = make_handle<pagoda_cache_memory>(MemoryIn<Space>{cache.k_memory, cache.v_memory});
          to_k = describe(cache.k), to_v = describe(cache.v);
          *memory = made;
        };
        if (s.layout == PAGODA_CONTIGUOUS) {
          keep(pagoda::make_contiguous_cache<T>(
              instance, {s.num_pages, s.page_size, s.num_kv_heads, s.head_dim, s.head_dim_v, order}));
        } else {
          keep(pagoda::make_paged_cache<T>(
              instance, {s.num_pages, s.page_size, s.num_kv_heads, s.head_dim, s.head_dim_v, order}));
        }
      });
    });
  });
}

void pagoda_cache_memory_destroy(pagoda_cache_memory* memory) { destroy_handle(memory); }

pagoda_status pagoda_bytes_per_token(std::int32_t num_kv_heads, std::int32_t head_dim, std::int32_t head_dim_v,
                                     pagoda_type type, std::int64_t* bytes) {
  return guarded([&] {
    const char* const who = "pagoda_bytes_per_token";
    std::int64_t& to      = not_null(who, "bytes", bytes);
    at_least(who, "num_kv_heads", num_kv_heads, 0), at_least(who, "head_dim", head_dim, 0);
    at_least(who, "head_dim_v", head_dim_v, 0);
    to = pagoda::bytes_per_token(num_kv_heads, head_dim, type_of(who, "type", type), head_dim_v);
  });
}

pagoda_status pagoda_latent_bytes_per_token(std::int32_t kv_lora_rank, std::int32_t rope_dim, pagoda_type type,
                                            std::int64_t* bytes) {
  return guarded([&] {
    const char* const who = "pagoda_latent_bytes_per_token";
    std::int64_t& to      = not_null(who, "bytes", bytes);
    at_least(who, "kv_lora_rank", kv_lora_rank, 0), at_least(who, "rope_dim", rope_dim, 0);
    require(kv_lora_rank <= std::numeric_limits<int>::max() - rope_dim, who, ": kv_lora_rank is ", kv_lora_rank,
            " and rope_dim ", rope_dim, "; allowed: a sum below 2^31");
    to = pagoda::latent_bytes_per_token(kv_lora_rank, rope_dim, type_of(who, "type", type));
  });
}

pagoda_status pagoda_reserved_tokens(std::int64_t seq_len, std::int64_t page_size, std::int64_t* tokens) {
  return guarded([&] {
    const char* const who = "pagoda_reserved_tokens";
    std::int64_t& to      = not_null(who, "tokens", tokens);
    at_least(who, "seq_len", seq_len, 0), at_least(who, "page_size", page_size, 1);
    to = pagoda::reserved_tokens(seq_len, page_size);
  });
}

pagoda_status pagoda_waste_fraction(std::int64_t seq_len, std::int64_t page_size, double* fraction) {
  return guarded([&] {
    const char* const who = "pagoda_waste_fraction";
    double& to            = not_null(who, "fraction", fraction);
    at_least(who, "seq_len", seq_len, 0), at_least(who, "page_size", page_size, 1);
    to = pagoda::waste_fraction(seq_len, page_size);
  });
}

pagoda_status pagoda_sequences_that_fit(std::int64_t budget_bytes, std::int64_t token_bytes, std::int64_t seq_len,
                                        std::int64_t page_size, std::int64_t* sequences) {
  return guarded([&] {
    std::int64_t& to = not_null("pagoda_sequences_that_fit", "sequences", sequences);
    to               = pagoda::sequences_that_fit(budget_bytes, token_bytes, seq_len, page_size);
  });
}
