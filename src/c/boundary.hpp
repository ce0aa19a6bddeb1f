// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/c/erased.hpp"

#include <atomic>
#include <cstddef>
#include <cstring>
#include <new>
#include <stdexcept>
#include <type_traits>
#include <utility>

/// Common to all C functions: stops exceptions, reads structs of other versions, and selects the execution instance.
namespace pagoda::c {

/// Thrown if a call needs Kokkos and it is not initialized.
class NotInitialized : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Keeps the message of the exception being handled for pagoda_last_error, and returns its status.
pagoda_status record_exception() noexcept;

/// Runs f; no exception leaves it.
template <class F>
pagoda_status guarded(F&& f) noexcept {
  try {
    f();
    return PAGODA_SUCCESS;
  } catch (...) {
    return record_exception();
  }
}

/// Runs f, which returns a pointer; null if it throws.
template <class F>
auto guarded_pointer(F&& f) noexcept -> decltype(f()) {
  try {
    return f();
  } catch (...) {
    record_exception();
    return nullptr;
  }
}

/// The object behind a pointer or handle of the caller's.
template <class T>
T& not_null(const char* who, const char* name, T* pointer) {
  require(pointer != nullptr, who, ": ", name, " is NULL; allowed: a valid pointer");
  return *pointer;
}

void require_kokkos(const char* who);

/// Handles of objects that hold memory of Kokkos or use its instances.
inline std::atomic<int> live_handles{0};

template <class Handle, class... Args>
Handle* make_handle(Args&&... args) {
  auto* const made = new Handle{std::forward<Args>(args)...};
  ++live_handles;
  return made;
}
template <class Handle>
void destroy_handle(Handle* handle) noexcept {
  if (!handle) return;
  guarded([&] { delete handle; });
  --live_handles;
}

/// Checks the struct_size of a struct: at least `least` (the size in the first version), and zeros after the fields
/// that this version knows. Returns the number of bytes that both versions have.
template <class T>
std::size_t common_bytes(const char* who, const char* name, const T* given, std::size_t least) {
  static_assert(std::is_trivially_copyable_v<T> && std::is_standard_layout_v<T>);
  const std::size_t size = not_null(who, name, given).struct_size;
  require(size >= least && size <= (std::size_t(1) << 16), who, ": ", name, ".struct_size is ", size,
          "; allowed: the size of the struct, ", sizeof(T), " in this version and at least ", least);
  return size < sizeof(T) ? size : sizeof(T);
}

/// A copy in which the fields that an older struct lacks are zero.
template <class T>
T read_struct(const char* who, const char* name, const T* given, std::size_t least) {
  const std::size_t bytes = common_bytes(who, name, given, least);
  const auto* const raw   = reinterpret_cast<const unsigned char*>(given);
  for (std::size_t i = bytes; i < given->struct_size; ++i)
    require(raw[i] == 0, who, ": ", name, " has a nonzero byte at ", i, ", behind the ", sizeof(T),
            " that this version of the library knows; allowed: 0, or a newer library");
  T copy{};
  std::memcpy(&copy, given, bytes);
  return copy;
}

/// Calls f with the instance behind exec; null: the default instance of the default space.
template <class F>
void with_exec(const char* who, const pagoda_exec* exec, F&& f) {
  require_kokkos(who);
  if (!exec) return f(AllSpaces::Default());
  std::visit(f, exec->instance);
}

/// The instance of this Space behind exec; null: the default one.
template <class Space>
Space exec_of(const char* who, const pagoda_exec* exec, const char* owner) {
  require_kokkos(who);
  if (!exec) return Space();
  const Space* const instance = std::get_if<Space>(&exec->instance);
  require(instance != nullptr, who, ": exec belongs to another execution space than the ", owner,
          "; allowed: an instance of ", Space::name(), ", or NULL");
  return *instance;
}

}  // namespace pagoda::c
