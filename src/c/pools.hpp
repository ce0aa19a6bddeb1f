// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pagoda/pagoda_pool.h>

#include "src/c/tensors.hpp"

#include <span>

/// Calls on pool handles.
namespace pagoda::c {

/// Calls f with the pool behind the handle, for any type and space.
template <class Handle, class F>
void with_pool(const char* who, Handle* handle, F&& f) {
  const auto call = [&]<class Pool>(Pool& pool) {
    if constexpr (!std::is_same_v<std::remove_const_t<Pool>, std::monostate>) f(*pool);
  };
  std::visit([&](auto& in_space) { std::visit(call, in_space); }, not_null(who, "pool", handle).pool);
}

/// The same, with the pool's instance behind exec, and the memory that its space can access.
template <class F>
void with_pool(const char* who, const pagoda_exec* exec, pagoda_pool* handle, F&& f) {
  with_pool(who, handle, [&]<class T, class Space>(pagoda::KVPool<T, Space>& pool) {
    f(pool, exec_of<Space>(who, exec, "pool"), Reach::of<Space>());
  });
}

/// An array of num_slots entries.
inline std::span<const int> list_of(const char* who, const char* name, const std::int32_t* entries,
                                    std::int32_t count) {
  require(count >= 0, who, ": num_slots is ", count, "; allowed: 0 or more");
  require(entries || count == 0, who, ": ", name, " is NULL; allowed: memory for ", count, " entries");
  return {entries, static_cast<std::size_t>(count)};
}

}  // namespace pagoda::c
