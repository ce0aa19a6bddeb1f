#include <thread>

// Linked into every executable of a build for ThreadSanitizer (see PagodaTsan.cmake).

extern "C" const char* __tsan_default_options() { return "ignore_noninstrumented_modules=1:halt_on_error=1"; }

// In place of libkokkoscore.so's, which is not instrumented.
void Kokkos::Impl::HostBarrier::impl_backoff_wait_until_equal(int* ptr, const int v, const bool) noexcept {
  while (!test_equal(ptr, v)) std::this_thread::yield();
}
