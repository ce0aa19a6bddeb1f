// SPDX-License-Identifier: Apache-2.0
#include "tests/support/failing_allocations.hpp"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace pagoda::test {
namespace {

std::atomic<bool> armed{false}, lasting_failure{false};
std::atomic<long> requests{0}, failing{FailingAllocations::never};

bool fails() {
  if (!armed) return false;
  const long n = requests++, first = failing;
  return first >= 0 && (lasting_failure ? n >= first : n == first);
}

void* allocate(std::size_t size, std::size_t alignment) {
  if (fails()) return nullptr;
  const std::size_t bytes = size > 0 ? size : 1;
  if (alignment <= alignof(std::max_align_t)) return std::malloc(bytes);
  return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

void* allocate_or_throw(std::size_t size, std::size_t alignment) {
  void* const memory = allocate(size, alignment);
  if (!memory) throw std::bad_alloc();
  return memory;
}

constexpr std::size_t usual = alignof(std::max_align_t);

}  // namespace

FailingAllocations::FailingAllocations(long n, bool lasting) {
  requests        = 0;
  failing         = n;
  lasting_failure = lasting;
  armed           = true;
}
FailingAllocations::~FailingAllocations() { armed = false; }
long FailingAllocations::count() { return requests; }

}  // namespace pagoda::test

using pagoda::test::allocate;
using pagoda::test::allocate_or_throw;
using pagoda::test::usual;

/// AddressSanitizer reads this. Kokkos (seen in 5.2.2) leaks memory if an allocation fails while it makes a View or
/// copies a functor. The tests check the library itself, by counting pages and slots.
extern "C" const char* __asan_default_options() { return "detect_leaks=0"; }

// The forms for arrays and for sizes call these.
void* operator new(std::size_t size) { return allocate_or_throw(size, usual); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return allocate_or_throw(size, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return allocate(size, usual); }
void* operator new(std::size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return allocate(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t, const std::nothrow_t&) noexcept { std::free(memory); }
