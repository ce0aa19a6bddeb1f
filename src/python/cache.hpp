// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/python/runtime.hpp"

#include <optional>
#include <string>
#include <vector>

namespace pagoda::python {

/// A cache, described once and used by many calls. It keeps the arrays alive.
class Cache {
 public:
  /// Arguments of Python's PagedCache and ContiguousCache; None where a cache has no such array.
  struct Arguments {
    nb::object k, v, seq_lens, block_table, page_indptr, sequence_ids;
    nb::object k_scale, v_scale, k_block_scale, v_block_scale;
    std::string order, scale_order;
    std::optional<std::string> kv_type;
    int max_seq_len       = 0;
    std::uintptr_t stream = 0;
  };

  Cache(const char* who, bool paged, const Arguments& arguments);
  /// The cache that a pool has described. The pool lives as long.
  Cache(const pagoda_cache& described, Device device, nb::object pool);

  const pagoda_cache* described() const { return &kv_; }
  Device device() const { return device_; }
  pagoda_order order() const { return kv_.order; }

  int batch() const { return kv_.sequence_ids ? kv_.batch : kv_.num_sequences; }
  int num_kv_heads() const { return static_cast<int>(kv_.k.extent[kv_.order == PAGODA_NHD ? 2 : 1]); }
  int page_size() const { return static_cast<int>(kv_.k.extent[kv_.order == PAGODA_NHD ? 1 : 2]); }
  int head_dim() const { return dims(kv_.k, false); }
  int head_dim_v() const { return dims(kv_.v, true); }
  std::string kv_type() const { return pagoda_type_name(kv_.k.type); }
  bool paged() const { return kv_.layout != PAGODA_CONTIGUOUS; }

 private:
  static int dims(const pagoda_tensor& t, bool values);
  const Array& keep(const char* name, nb::handle object, std::uintptr_t stream);

  const char* who_;
  std::vector<Array> arrays_;
  nb::object pool_;
  pagoda_cache kv_{};
  Device device_;
};

pagoda_order order_by_name(const char* who, const char* argument, const std::string& name);

void bind_cache(nb::module_& m);
void bind_plan(nb::module_& m);
void bind_memory(nb::module_& m);
void bind_pool(nb::module_& m);
void bind_prefix(nb::module_& m);

}  // namespace pagoda::python
