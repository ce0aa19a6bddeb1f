// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/pagoda_memory.h>
#include <pagoda/pagoda_pool.h>
#include <pagoda/pagoda_prefix.h>
#include <pagoda/pagoda.hpp>

#include "pagoda_enabled_types.hpp"
#include "src/base/spaces.hpp"

#include <Kokkos_Core.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <variant>
#include <vector>

/// The part of the library that the C interface uses: all names of its type-erased boundary that the other files of
/// this folder need, and the variants behind its opaque handles.
namespace pagoda::c {

using pagoda::CacheRef;
using pagoda::ScaleRef;
using pagoda::TensorRef;

using detail::require;
using detail::scale_ref;

template <class Space>
using Options = DecodeOptions<typename Space::memory_space>;

/// Passes a TensorRef as a View to public templates that only describe their Views (decode, merge, check, pools). Its
/// element type is known only at run time; value_type is a type that the templates allow.
template <int Rank>
struct Array {
  using value_type   = float;
  using memory_space = Kokkos::AnonymousSpace;  // assignable everywhere: access is checked where tensors are read
  static constexpr int rank() { return Rank; }

  TensorRef ref;

  const float* data() const { return static_cast<const float*>(ref.data); }
  std::size_t extent(int axis) const { return static_cast<std::size_t>(ref.extent[axis]); }
  std::size_t stride(int axis) const { return static_cast<std::size_t>(ref.stride[axis]); }
};

/// Passes a CacheRef as a layout to plan, decode and check. Only kernels read its elements.
struct Cache {
  using value_type   = float;
  using memory_space = Kokkos::AnonymousSpace;

  CacheRef described;

  int batch() const { return described.batch; }
  CacheRef ref() const { return described; }
  // Members that the concept KVLayout requires and this interface never uses.
  int seq_len(int b) const;
  float key(int b, int t, int head, int d) const;
  float value(int b, int t, int head, int d) const;
};
static_assert(KVLayout<Cache>);

template <class Space>
void write_kv(const Space& exec, const TensorRef& k_cache, const TensorRef& v_cache, const std::int64_t* slot_mapping,
              std::int64_t num_tokens, const TensorRef& k, const TensorRef& v) {
  detail::write_kv(exec, k_cache, v_cache, detail::SlotMapping{slot_mapping, num_tokens, 1}, k, v);
}

/// The spaces that the library is compiled for, as alternatives of a variant of T<Space>.
#define PAGODA_SPACE(Space) , Space
template <class... Spaces>
struct ForSpaces;
template <class... Spaces>
struct ForSpaces<void, Spaces...> {
  template <template <class> class T>
  using Variant                  = std::variant<T<Spaces>...>;
  using Default                  = std::tuple_element_t<0, std::tuple<Spaces...>>;
  using Host                     = std::tuple_element_t<sizeof...(Spaces) - 1, std::tuple<Spaces...>>;
  static constexpr bool has_host = std::is_same_v<Host, Kokkos::DefaultHostExecutionSpace>;
};
using AllSpaces = ForSpaces<void PAGODA_FOR_EACH_SPACE(PAGODA_SPACE)>;
#undef PAGODA_SPACE

/// A pool of any plain type in a space.
#define PAGODA_POOL(name) , std::unique_ptr<KVPool<detail::type_##name, Space>>
template <class Space>
using PoolIn = std::variant<std::monostate PAGODA_FOR_EACH_PLAIN_TYPE(PAGODA_POOL)>;
#undef PAGODA_POOL

template <class Space>
using Instance = Space;

/// What owns the memory of a cache: views of keys and of values.
template <class Space>
struct MemoryIn {
  Kokkos::View<std::byte*, typename Space::memory_space> k, v;
};

}  // namespace pagoda::c

namespace pagoda {

/// tensor_ref returns the Array itself.
template <>
inline TensorRef tensor_ref(const c::Array<2>& view) {
  return view.ref;
}
template <>
inline TensorRef tensor_ref(const c::Array<3>& view) {
  return view.ref;
}
template <>
inline TensorRef tensor_ref(const c::Array<4>& view) {
  return view.ref;
}

namespace c {

inline void check_extents(const char* who, const Array<4>& k, const Array<4>& v) {
  detail::check_cache_views(who, k, v);
}

}  // namespace c

}  // namespace pagoda

/// The opaque handles.
struct pagoda_exec {
  pagoda::c::AllSpaces::Variant<pagoda::c::Instance> instance;
};

struct pagoda_plan {
  pagoda::c::AllSpaces::Variant<pagoda::Plan> plan;
  std::string description, backend;
  std::vector<pagoda::TableFault> faults;  ///< those of the last pagoda_plan_read_faults
};

struct pagoda_pool {
  pagoda::c::AllSpaces::Variant<pagoda::c::PoolIn> pool;
  std::string description;
};

struct pagoda_prefix_decoder {
  pagoda::c::AllSpaces::Variant<pagoda::PrefixDecoder> decoder;
  std::string description;
};

struct pagoda_cache_memory {
  pagoda::c::AllSpaces::Variant<pagoda::c::MemoryIn> memory;
};
