// SPDX-License-Identifier: Apache-2.0
#include "src/python/array.hpp"

#include <nanobind/stl/string.h>

#include <limits>
#include <vector>

namespace pagoda::python {

namespace {

std::string name_of(dlpack::DataType type) {
  const auto with_bits = [&](const char* kind) { return kind + std::to_string(type.bits); };
  std::string name;
  switch (type.code) {
    case dlpack::kInt:
      name = with_bits("int");
      break;
    case dlpack::kUInt:
      name = with_bits("uint");
      break;
    case dlpack::kFloat:
      name = with_bits("float");
      break;
    case dlpack::kBfloat:
      name = with_bits("bfloat");
      break;
    case dlpack::kComplex:
      name = with_bits("complex");
      break;
    case dlpack::kBool:
      name = "bool";
      break;
    case dlpack::kE4M3FN:
      name = "float8_e4m3fn";
      break;
    case dlpack::kE5M2:
      name = "float8_e5m2";
      break;
    case dlpack::kE8M0FNU:
      name = "float8_e8m0fnu";
      break;
    case dlpack::kE2M1FN:
      name = "float4_e2m1fn";
      break;
    default:
      name = "DLPack type " + std::to_string(type.code) + " of " + std::to_string(type.bits) + " bits";
  }
  return type.lanes == 1 ? name : name + "x" + std::to_string(type.lanes);
}

bool same(dlpack::DataType a, dlpack::DataType b) { return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes; }

/// The type of caches, queries and outputs with these elements; 0: none. Bytes of int4, mxfp4, nvfp4 and fp8_ds_mla
/// have no name of their own in DLPack: they are uint8, or float4_e2m1fnx2.
pagoda_type element_type(dlpack::DataType type) {
  for (const pagoda_type known :
       {PAGODA_FP64, PAGODA_FP32, PAGODA_FP16, PAGODA_BF16, PAGODA_FP8_E4M3, PAGODA_FP8_E5M2, PAGODA_INT8, PAGODA_E8M0})
    if (same(type, dlpack_type(known))) return known;
  return 0;
}

/// Whether elements may be the stored bits of another type of their size: unsigned integers, and pairs of E2M1.
bool is_bits(dlpack::DataType type) {
  return (type.code == dlpack::kUInt && type.lanes == 1) || same(type, {dlpack::kE2M1FN, 4, 2});
}

/// The words of the Python error that is being handled.
std::string words_of(nb::python_error& error) {
  std::string words = nb::str(error.value()).c_str();
  return words.empty() ? std::string(nb::type_name(error.type()).c_str()) : words;
}

/// The capsule of an array. A GPU's array is exported for the stream of the call.
nb::object exported(nb::handle object, std::uintptr_t stream) {
#if defined(PAGODA_PYTHON_CUDA) || defined(PAGODA_PYTHON_HIP)
  const auto device = nb::cast<nb::tuple>(object.attr("__dlpack_device__")());
  if (nb::cast<std::int32_t>(nb::int_(device[0])) != dlpack::kCPU) {
#if defined(PAGODA_PYTHON_CUDA)
    if (stream == 0) stream = 1;  // DLPack's number of CUDA's default stream
#endif
    return object.attr("__dlpack__")(nb::arg("stream") = stream);
  }
#else
  static_cast<void>(stream);
#endif
  return object.attr("__dlpack__")();
}

/// Sets bits_of if the capsule has only the bits of a type. NumPy exports neither the types of ml_dtypes nor, in old
/// capsules, read-only arrays.
nb::object capsule_of(const char* who, const char* name, nb::handle object, std::uintptr_t stream,
                      pagoda_type& bits_of) {
  if (PyCapsule_CheckExact(object.ptr())) return nb::borrow(object);
  if (!nb::hasattr(object, "__dlpack__"))
    refuse(who, ": ", name, " is an object of type ", nb::type_name(object.type()).c_str(),
           "; allowed: an array with __dlpack__ (NumPy, PyTorch, JAX, CuPy)");
  try {
    return exported(object, stream);
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_BufferError) && !error.matches(PyExc_RuntimeError)) throw;
    const std::string words = words_of(error);
    const nb::module_ here  = nb::module_::import_("pagoda._arrays");
    const auto other        = nb::cast<nb::tuple>(here.attr("other_export")(object));
    if (other[0].is_none()) refuse(who, ": ", name, " has no DLPack description (", words, ")");
    if (!other[1].is_none()) bits_of = type_by_name(who, name, nb::cast<std::string>(other[1]));
    return other[0];
  }
}

/// The table of the array's type; null if there is none.
const dlpack::ExchangeApi* table_of(nb::handle object) {
  struct Known {
    PyObject* type;  // owned, so that the address is not used again
    const dlpack::ExchangeApi* table;
  };
  static std::vector<Known>* const known = new std::vector<Known>;  // under the GIL
  PyObject* const type                   = reinterpret_cast<PyObject*>(Py_TYPE(object.ptr()));
  for (const Known& entry : *known)
    if (entry.type == type) return entry.table;
  const dlpack::ExchangeApi* table = nullptr;
  const nb::object capsule         = nb::getattr(nb::handle(type), "__dlpack_c_exchange_api__", nb::none());
  if (PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) {
    table = static_cast<dlpack::ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
    if (table->major != 1) table = nullptr;
  }
  Py_INCREF(type);
  known->push_back({type, table});
  return table;
}

bool requires_grad(nb::handle object) {
  static PyObject* const name = PyUnicode_InternFromString("requires_grad");
  const nb::object answer     = nb::steal(PyObject_GetAttr(object.ptr(), name));
  if (!answer.is_valid()) PyErr_Clear();
  return answer.is_valid() && answer.ptr() == Py_True;
}

}  // namespace

std::string Device::name() const {
  switch (type) {
    case dlpack::kCPU:
      return "cpu";
    case dlpack::kCUDA:
      return "cuda:" + std::to_string(id);
    case dlpack::kROCM:
      return "rocm:" + std::to_string(id);
    default:
      return "DLPack device " + std::to_string(type) + ":" + std::to_string(id);
  }
}

Array::Array(const char* who, const char* name, nb::handle object, Access access, std::uintptr_t stream) {
  if (read_by_table(who, name, object, access)) return;
  pagoda_type bits_of = 0;
  owner_              = capsule_of(who, name, object, stream, bits_of);
  if (const auto* const old = static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(owner_.ptr(), "dltensor"))) {
    describe(who, name, old->tensor);
  } else {
    PyErr_Clear();
    const auto* const versioned =
        static_cast<dlpack::ManagedTensorVersioned*>(PyCapsule_GetPointer(owner_.ptr(), "dltensor_versioned"));
    if (!versioned) {
      PyErr_Clear();
      refuse(who, ": ", name, " has a DLPack capsule that was used before; allowed: a new one");
    }
    if (versioned->major != 1)
      refuse(who, ": ", name, " is described by DLPack ", versioned->major, ".", versioned->minor, "; allowed: 1.x");
    describe(who, name, versioned->tensor);
    require_writable(who, name, versioned->flags, access);
  }
  if (bits_of != 0) tensor_.type = bits_of, type_ = dlpack_type(bits_of);
}

/// Uses the C functions of the array's library, which take a tenth of the time of __dlpack__. PyTorch's describe
/// tensors that require gradients, which __dlpack__ refuses; so does this call.
bool Array::read_by_table(const char* who, const char* name, nb::handle object, Access access) {
  const dlpack::ExchangeApi* const table = table_of(object);
  if (!table) return false;
  if (requires_grad(object))
    refuse(who, ": ", name, " requires a gradient, and Pagoda computes none; allowed: ", name, ".detach()");
  if (access == Access::read && table->tensor_of_object) {
    dlpack::Tensor tensor;
    if (table->tensor_of_object(object.ptr(), &tensor) != 0) throw nb::python_error();
    owner_ = nb::borrow(object);
    describe(who, name, tensor);
    return true;
  }
  dlpack::ManagedTensorVersioned* managed = nullptr;
  if (table->managed_of_object(object.ptr(), &managed) != 0) throw nb::python_error();
  owner_ = nb::capsule(managed, [](void* made) noexcept {
    auto* const tensor = static_cast<dlpack::ManagedTensorVersioned*>(made);
    if (tensor->deleter) tensor->deleter(tensor);
  });
  describe(who, name, managed->tensor);
  require_writable(who, name, managed->flags, access);
  return true;
}

void Array::require_writable(const char* who, const char* name, std::uint64_t flags, Access access) const {
  if ((flags & dlpack::read_only_flag) != 0 && (access == Access::write || access == Access::keep_write))
    refuse(who, ": ", name, " is read-only; allowed: memory that can be written");
}

Array Array::optional(const char* who, const char* name, nb::handle object, Access access, std::uintptr_t stream) {
  return object.is_none() ? Array() : Array(who, name, object, access, stream);
}

void Array::describe(const char* who, const char* name, const dlpack::Tensor& from) {
  constexpr int most_axes = 4;
  if (from.ndim > most_axes) refuse(who, ": ", name, " has ", from.ndim, " axes; allowed: at most ", most_axes);
  tensor_.data = static_cast<char*>(from.data) + from.byte_offset;
  tensor_.rank = from.ndim;
  type_        = from.dtype;
  tensor_.type = element_type(type_);
  switch (from.device.type) {
    case dlpack::kCPU:
      tensor_.memory = PAGODA_MEMORY_HOST;
      break;
    case dlpack::kCUDAHost:
    case dlpack::kROCMHost:
      tensor_.memory = PAGODA_MEMORY_SHARED;
      break;
    case dlpack::kCUDAManaged:
      tensor_.memory = PAGODA_MEMORY_SHARED;
      device_        = {dlpack::kCUDA, from.device.id};
      break;
    default:
      tensor_.memory = PAGODA_MEMORY_DEVICE;
      device_        = {from.device.type, from.device.id};
  }
  // Strides of axes with one entry mean nothing, and some libraries make them 0. The C interface reads zeros on all
  // axes as dense, so they get the stride of a dense array.
  std::int64_t dense = 1;
  bool repeated      = from.ndim > 0;
  for (int axis = from.ndim - 1; axis >= 0; --axis) {
    const std::int64_t extent = from.shape[axis];
    std::int64_t stride       = from.strides ? from.strides[axis] : dense;
    if (extent <= 1 && stride == 0) stride = dense;
    tensor_.extent[axis] = extent, tensor_.stride[axis] = stride;
    repeated = repeated && stride == 0;
    dense *= extent > 1 ? extent : 1;
  }
  if (repeated)
    refuse(who, ": ", name, " repeats one element (all strides are 0); allowed: an array with its own memory");
}

std::string Array::type_name() const { return name_of(type_); }

pagoda_tensor Array::as(const char* who, const char* name, pagoda_type type) const {
  pagoda_tensor to = tensor_;
  to.type          = type;
  const bool fits  = static_cast<std::size_t>(type_.bits) * type_.lanes == 8 * pagoda_type_size(type);
  if (tensor_.type != type && !(fits && is_bits(type_)))
    refuse(who, ": ", name, " holds ", type_name(), "; allowed: ", pagoda_type_name(type), ", or unsigned integers of ",
           8 * pagoda_type_size(type), " bits with its values");
  return to;
}

void Array::require_type(const char* who, const char* name, dlpack::DataType wanted) const {
  if (!same(type_, wanted)) refuse(who, ": ", name, " holds ", type_name(), "; allowed: ", name_of(wanted));
}

template <class T>
T* Array::vector_of(const char* who, const char* name) const {
  constexpr bool is_float = std::numeric_limits<T>::is_iec559, is_signed = std::numeric_limits<T>::is_signed;
  constexpr std::uint8_t code = is_float ? dlpack::kFloat : is_signed ? dlpack::kInt : dlpack::kUInt;
  require_type(who, name, {code, sizeof(T) * 8, 1});
  if (tensor_.rank != 1) refuse(who, ": ", name, " has ", tensor_.rank, " axes; allowed: 1");
  if (tensor_.stride[0] != 1 && tensor_.extent[0] > 1)
    refuse(who, ": ", name, " has stride ", tensor_.stride[0], "; allowed: adjacent entries");
  return static_cast<T*>(tensor_.data);
}

template std::int32_t* Array::vector_of<std::int32_t>(const char*, const char*) const;
template std::int64_t* Array::vector_of<std::int64_t>(const char*, const char*) const;
template std::uint8_t* Array::vector_of<std::uint8_t>(const char*, const char*) const;
template float* Array::vector_of<float>(const char*, const char*) const;

const std::int32_t* Array::int_table(const char* who, const char* name) const {
  require_type(who, name, {dlpack::kInt, 32, 1});
  if (tensor_.rank != 2) refuse(who, ": ", name, " has ", tensor_.rank, " axes; allowed: 2");
  return static_cast<const std::int32_t*>(tensor_.data);
}

void Array::require_on(const char* who, const char* name, Device device, const char* owner) const {
  if (*this && device_ != device)
    refuse(who, ": ", name, " is on ", device_.name(), "; allowed: ", device.name(), ", ", owner);
}

pagoda_type type_by_name(const char* who, const char* argument, const std::string& name) {
  std::string all;
  for (pagoda_type type = PAGODA_FP64; type <= PAGODA_FP8_DS_MLA; ++type) {
    if (name == pagoda_type_name(type)) return type;
    all += std::string(type == PAGODA_FP64 ? "" : ", ") + pagoda_type_name(type);
  }
  if (name == pagoda_type_name(PAGODA_E8M0)) return PAGODA_E8M0;
  refuse(who, ": ", argument, " is \"", name, "\"; allowed: ", all);
}

dlpack::DataType dlpack_type(pagoda_type type) {
  switch (type) {
    case PAGODA_FP64:
      return {dlpack::kFloat, 64, 1};
    case PAGODA_FP32:
      return {dlpack::kFloat, 32, 1};
    case PAGODA_FP16:
      return {dlpack::kFloat, 16, 1};
    case PAGODA_BF16:
      return {dlpack::kBfloat, 16, 1};
    case PAGODA_FP8_E4M3:
      return {dlpack::kE4M3FN, 8, 1};
    case PAGODA_FP8_E5M2:
      return {dlpack::kE5M2, 8, 1};
    case PAGODA_INT8:
      return {dlpack::kInt, 8, 1};
    case PAGODA_E8M0:
      return {dlpack::kE8M0FNU, 8, 1};
    default:
      return {dlpack::kUInt, 8, 1};
  }
}

}  // namespace pagoda::python
