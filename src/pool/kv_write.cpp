// SPDX-License-Identifier: Apache-2.0
#include <pagoda/kv_write.hpp>

#include "src/base/by_type.hpp"
#include "src/base/checks.hpp"
#include "src/base/spaces.hpp"
#include "src/pool/write_rows.hpp"

#include <limits>
#include <string>

namespace pagoda::detail {

namespace {

const std::string& label() {
  static const std::string made = "Pagoda::write_kv";  // once: a call allocates nothing
  return made;
}

}  // namespace

void check_rows(const char* owner, const char* call, const TensorRef& k, const TensorRef& v, std::int64_t tokens,
                std::int64_t num_kv_heads, std::int64_t head_dim, std::int64_t head_dim_v) {
  const auto check = [&](const char* name, const TensorRef& t, std::int64_t dims) {
    require(!is_quantized(t.type), owner, call, ": ", name, " holds ", name_of(t.type),
            "; allowed: fp64, fp32, fp16 or bf16");
    require(t.extent[0] == tokens && t.extent[1] == num_kv_heads && t.extent[2] == dims, owner, call, ": ", name,
            " is (", t.extent[0], ", ", t.extent[1], ", ", t.extent[2], "); allowed: (token, kv head, dim) = (", tokens,
            ", ", num_kv_heads, ", ", dims, ")");
    require(has_memory(t), owner, call, ": ", name, " has a null pointer; allowed: memory for all of its elements");
  };
  require(tokens <= std::numeric_limits<int>::max(), owner, call, ": ", tokens, " tokens at once; allowed: below 2^31");
  check("k", k, head_dim);
  check("v", v, head_dim_v);
}

template <class ExecutionSpace>
void write_kv(const ExecutionSpace& exec, const TensorRef& k_cache, const TensorRef& v_cache,
              const SlotMapping& mapping, const TensorRef& k, const TensorRef& v) {
  require(k_cache.type == v_cache.type, "pagoda::write_kv: v_cache holds ", name_of(v_cache.type),
          "; allowed: ", name_of(k_cache.type), ", as k_cache does");
  // The caller writes quantized caches, because it must choose the scales.
  require_plain("pagoda::write_kv", "k_cache and v_cache hold", k_cache.type);
  check_rows("pagoda", "::write_kv", k, v, mapping.count, k_cache.extent[2], k_cache.extent[3], v_cache.extent[3]);
  check_mapping("pagoda", "::write_kv", mapping);
  require_data("pagoda::write_kv", "k_cache", k_cache);
  require_data("pagoda::write_kv", "v_cache", v_cache);
  const RowShape shape{static_cast<int>(k_cache.extent[2]), static_cast<int>(k_cache.extent[3]),
                       static_cast<int>(v_cache.extent[3]), k_cache.extent[0] * k_cache.extent[1]};
  by_plain_type(k_cache.type, [&]<class T>(T*) {
    write_mapped<T>(label(), exec, mapping, shape, {caller_rows(k), caller_rows(v)},
                    {cache_rows(k_cache), cache_rows(v_cache)});
  });
}

#define PAGODA_INSTANTIATE(Space)                                                                                   \
  template PAGODA_EXPORT void write_kv<Space>(const Space&, const TensorRef&, const TensorRef&, const SlotMapping&, \
                                              const TensorRef&, const TensorRef&);
PAGODA_FOR_EACH_SPACE(PAGODA_INSTANTIATE)
#undef PAGODA_INSTANTIATE

}  // namespace pagoda::detail
