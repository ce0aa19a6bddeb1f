// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/python/dlpack.hpp"

#include <pagoda/pagoda.h>

#include <nanobind/nanobind.h>

#include <compare>
#include <cstdint>
#include <string>

/// Arrays of Python programs, described for the C interface without a copy.
namespace pagoda::python {

namespace nb = nanobind;

/// `refuse("pagoda.plan: ...")` raises ValueError.
template <class... Parts>
[[noreturn]] void refuse(const Parts&... parts);

/// The memory of an array, as plans see it: pinned memory belongs to the CPU, managed memory to the GPU.
struct Device {
  std::int32_t type = dlpack::kCPU;
  std::int32_t id   = 0;

  bool on_cpu() const { return type == dlpack::kCPU; }
  auto operator<=>(const Device&) const = default;
  std::string name() const;  ///< "cpu", "cuda:0"
};

/// What a call does with an array. `keep`: later calls read it too.
enum class Access { read, keep, write, keep_write };

/// An array that a call reads or writes. It keeps the memory alive, and belongs to the thread that holds the GIL.
class Array {
 public:
  Array() = default;

  /// Reads the object's DLPack description. Raises ValueError if it has none, or if it is to be written and is
  /// read-only. stream: of a GPU, on which the array will be used; its library lets that stream wait for earlier work
  /// on the array.
  Array(const char* who, const char* name, nb::handle object, Access access, std::uintptr_t stream);

  /// The same; an empty Array for None.
  static Array optional(const char* who, const char* name, nb::handle object, Access access, std::uintptr_t stream);

  explicit operator bool() const { return owner_.is_valid(); }

  /// Extents, strides and memory. `type` is that of the elements, or 0 if caches and queries have no such type.
  const pagoda_tensor& tensor() const { return tensor_; }
  Device device() const { return device_; }
  /// "float32", "int64".
  std::string type_name() const;

  /// Null for an empty Array: what the C interface takes for an array that is not wanted.
  const pagoda_tensor* tensor_or_null() const { return *this ? &tensor_ : nullptr; }

  /// The description with elements of this type. Raises ValueError unless the array holds it, or integers of its size.
  pagoda_tensor as(const char* who, const char* name, pagoda_type type) const;

  /// The first of the entries of a dense vector of T (std::int32_t, std::int64_t, float or std::uint8_t). Raises
  /// ValueError for any other array.
  template <class T>
  T* vector_of(const char* who, const char* name) const;

  /// The same for two axes with any strides.
  const std::int32_t* int_table(const char* who, const char* name) const;

  /// Raises ValueError if the array lies elsewhere. owner: "the cache's device".
  void require_on(const char* who, const char* name, Device device, const char* owner) const;

 private:
  void describe(const char* who, const char* name, const dlpack::Tensor& from);
  void require_type(const char* who, const char* name, dlpack::DataType wanted) const;

  bool read_by_table(const char* who, const char* name, nb::handle object, Access access);
  void require_writable(const char* who, const char* name, std::uint64_t flags, Access access) const;

  nb::object owner_;  // of the memory: a DLPack capsule, or the array itself
  pagoda_tensor tensor_{};
  dlpack::DataType type_{};
  Device device_;
};

/// The code of an element type by its short name, such as "int4". Raises ValueError for other names.
pagoda_type type_by_name(const char* who, const char* argument, const std::string& name);

/// The DLPack type of elements of a plain type.
dlpack::DataType dlpack_type(pagoda_type type);

}  // namespace pagoda::python

#include <sstream>

template <class... Parts>
void pagoda::python::refuse(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw nb::value_error(text.str().c_str());
}
