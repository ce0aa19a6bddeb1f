// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// The part of DLPack that array libraries exchange. Structs and values: https://dmlc.github.io/dlpack, version 1.1.
namespace pagoda::python::dlpack {

/// Values of Device::type.
enum DeviceType : std::int32_t {
  kCPU         = 1,
  kCUDA        = 2,
  kCUDAHost    = 3,  ///< pinned
  kROCM        = 10,
  kROCMHost    = 11,  ///< pinned
  kCUDAManaged = 13
};

struct Device {
  std::int32_t type;
  std::int32_t id;
};

/// Values of DataType::code.
enum TypeCode : std::uint8_t {
  kInt     = 0,
  kUInt    = 1,
  kFloat   = 2,
  kBfloat  = 4,
  kComplex = 5,
  kBool    = 6,
  kE4M3FN  = 10,
  kE5M2    = 12,
  kE8M0FNU = 14,
  kE2M1FN  = 17
};

struct DataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  std::int32_t ndim;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  ///< null: dense
  std::uint64_t byte_offset;
};

/// In a capsule named "dltensor".
struct ManagedTensor {
  Tensor tensor;
  void* manager_ctx;
  void (*deleter)(ManagedTensor*);
};

inline constexpr std::uint64_t read_only_flag = 1;

/// In a capsule named "dltensor_versioned".
struct ManagedTensorVersioned {
  std::uint32_t major, minor;
  void* manager_ctx;
  void (*deleter)(ManagedTensorVersioned*);
  std::uint64_t flags;
  Tensor tensor;
};

/// The table of C functions that a library may offer on its array type, as `__dlpack_c_exchange_api__`: a capsule named
/// "dlpack_exchange_api" (DLPack 1.3).
struct ExchangeApi {
  std::uint32_t major, minor;
  ExchangeApi* previous;
  void* allocate;
  int (*managed_of_object)(void* object, ManagedTensorVersioned** out);
  void* object_of_managed;
  int (*tensor_of_object)(void* object, Tensor* out);  ///< the object keeps the memory; may be null
  void* current_work_stream;
};

}  // namespace pagoda::python::dlpack
