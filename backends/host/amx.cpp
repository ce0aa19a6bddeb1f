// SPDX-License-Identifier: Apache-2.0
#include "backends/host/amx.hpp"

#if defined(__x86_64__) && defined(__linux__) && !defined(__HIP_DEVICE_COMPILE__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#define PAGODA_MAY_HAVE_AMX
#endif

namespace pagoda::detail {

#if defined(PAGODA_MAY_HAVE_AMX)
namespace {

bool ask() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq"))
    return false;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  constexpr unsigned bf16 = 1u << 22, tiles = 1u << 24;
  if ((d & (bf16 | tiles)) != (bf16 | tiles)) return false;
  // Linux saves the data of tiles only for processes that have asked (Documentation/arch/x86/xstate.rst).
  constexpr long request_permission = 0x1023, tile_data = 18;
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

}  // namespace

bool amx_usable() {
  static const bool usable = ask();
  return usable;
}
#else
bool amx_usable() { return false; }
#endif

}  // namespace pagoda::detail
