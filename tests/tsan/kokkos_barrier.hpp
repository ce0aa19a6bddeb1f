#pragma once

// Included before all else in a build for ThreadSanitizer (see PagodaTsan.cmake): reads Kokkos' barrier
// with atomics that acquire and release, in place of relaxed ones between fences, which TSan cannot see.
#include <Kokkos_Macros.hpp>

#include <Kokkos_Atomic.hpp>

namespace Kokkos {
inline int pagoda_tsan_fetch_add(int* p, int v) { return __atomic_fetch_add(p, v, __ATOMIC_ACQ_REL); }
inline int pagoda_tsan_fetch_sub(int* p, int v) { return __atomic_fetch_sub(p, v, __ATOMIC_ACQ_REL); }
}  // namespace Kokkos

#define atomic_fetch_add pagoda_tsan_fetch_add
#define atomic_fetch_sub pagoda_tsan_fetch_sub
#include <impl/Kokkos_HostBarrier.hpp>
#undef atomic_fetch_add
#undef atomic_fetch_sub
