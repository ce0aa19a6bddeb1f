// SPDX-License-Identifier: Apache-2.0
#include "tests/c/device.h"

#include "tests/support/elements.hpp"

#include <Kokkos_Core.hpp>
#include <cstdlib>

namespace {

using Space = Kokkos::DefaultExecutionSpace::memory_space;
template <class Memory>
using Bytes = Kokkos::View<std::byte*, Memory, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
template <class Memory>
using ConstBytes = Kokkos::View<const std::byte*, Memory, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;

template <class F>
double with_type(pagoda_type type, F&& f) {
  switch (type) {
#define PAGODA_CASE(name, ...)                    \
  case static_cast<int>(pagoda::DType::name) + 1: \
    return f(static_cast<pagoda::detail::type_##name*>(nullptr));
    PAGODA_FOR_EACH_TYPE(PAGODA_CASE)
#undef PAGODA_CASE
    default:
      std::abort();
  }
}

}  // namespace

void* device_alloc(size_t bytes) { return Kokkos::kokkos_malloc<Space>("test memory", bytes); }
void device_free(void* memory) { Kokkos::kokkos_free<Space>(memory); }
void copy_to_device(void* device, const void* host, size_t bytes) {
  Kokkos::deep_copy(Bytes<Space>(static_cast<std::byte*>(device), bytes),
                    ConstBytes<Kokkos::HostSpace>(static_cast<const std::byte*>(host), bytes));
}
void copy_to_host(void* host, const void* device, size_t bytes) {
  Kokkos::deep_copy(Bytes<Kokkos::HostSpace>(static_cast<std::byte*>(host), bytes),
                    ConstBytes<Space>(static_cast<const std::byte*>(device), bytes));
}

double store_dim(pagoda_type type, void* row, int d, double x) {
  with_type(type, [&]<class T>(T*) {
    pagoda::test::store_dim(static_cast<T*>(row), d, x);
    return 0.0;
  });
  return load_dim(type, row, d);
}

double load_dim(pagoda_type type, const void* row, int d) {
  return with_type(type, [&]<class T>(T*) { return pagoda::test::load_dim(static_cast<const T*>(row), d); });
}

double block_scale_of(pagoda_type type, unsigned char byte) {
  if (type == PAGODA_MXFP4) {
    pagoda::e8m0_t scale;
    scale.bits = byte;
    return static_cast<float>(scale);
  }
  pagoda::fp8_e4m3_t scale;
  scale.bits = byte;
  return static_cast<float>(scale);
}
