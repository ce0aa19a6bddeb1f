// SPDX-License-Identifier: Apache-2.0
#include "backends/host/isa.hpp"

#include <pagoda/error.hpp>

#include "pagoda_enabled_isas.hpp"

#include <cstdlib>
#include <string>
#if defined(__x86_64__) && defined(__linux__) && !defined(__HIP_DEVICE_COMPILE__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace pagoda::detail {

namespace {

bool compiled(HostIsa isa) {
#define PAGODA_IS(name) \
  if (isa == HostIsa::name) return true;
  PAGODA_FOR_EACH_HOST_ISA(PAGODA_IS)
#undef PAGODA_IS
  return false;
}

/// Whether the processor multiplies tiles of bfloat16, and this process may use them. Linux saves the data of tiles
/// only for processes that have asked for it (Documentation/arch/x86/xstate.rst).
[[maybe_unused]] bool may_use_tiles() {
#if defined(__x86_64__) && defined(__linux__) && !defined(__HIP_DEVICE_COMPILE__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned bf16 = 1u << 22, tiles = 1u << 24;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & (bf16 | tiles)) != (bf16 | tiles)) return false;
  constexpr long request_permission = 0x1023, tile_data = 18;
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
  return false;
#endif
}

/// The functions of the compiler ask the operating system too: whether it saves the registers.
bool supported(HostIsa isa) {
#if defined(__x86_64__) && !defined(__HIP_DEVICE_COMPILE__)
  __builtin_cpu_init();
  switch (isa) {
    case HostIsa::plain:
      return true;
    case HostIsa::avx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    case HostIsa::avx512:
      return supported(HostIsa::avx2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    case HostIsa::avx512_bf16:
      return supported(HostIsa::avx512) && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
    case HostIsa::amx: {
      static const bool tiles = supported(HostIsa::avx512) && may_use_tiles();
      return tiles;
    }
  }
  return false;
#else
  return isa == HostIsa::plain;
#endif
}

/// Intel's processors issue vdpbf16ps at a quarter of the rate of multiply-adds, and it does twice their work. AMD's
/// (family 25 model 17 was measured) issue both at the same rate.
bool pairs_are_fast() {
#if defined(__x86_64__) && !defined(__HIP_DEVICE_COMPILE__)
  return !__builtin_cpu_is("intel");
#else
  return false;
#endif
}

}  // namespace

const char* name_of(HostIsa isa) {
  switch (isa) {
    case HostIsa::plain:
      return "plain";
    case HostIsa::avx2:
      return "avx2";
    case HostIsa::avx512:
      return "avx512";
    case HostIsa::avx512_bf16:
      return "avx512_bf16";
    case HostIsa::amx:
      return "amx";
  }
  return "unknown";
}

bool has(HostIsa isa) { return compiled(isa) && supported(isa); }

HostIsa best_host_isa() {
  int best = static_cast<int>(last_host_isa);
  while (best > 0 && (!has(HostIsa(best)) || (HostIsa(best) == HostIsa::avx512_bf16 && !pairs_are_fast()))) --best;
  return HostIsa(best);
}

HostIsa host_isa() {
  static const HostIsa best  = best_host_isa();
  const char* const variable = std::getenv("PAGODA_HOST_ISA");
  const std::string name     = variable ? variable : "";
  if (name.empty()) return best;
  for (int i = 0; i <= static_cast<int>(last_host_isa); ++i)
    if (has(HostIsa(i)) && name == name_of(HostIsa(i))) return HostIsa(i);
  throw InvalidArgument(concat("pagoda::plan: PAGODA_HOST_ISA in the environment is \"", name,
                               "\"; allowed with this build and processor: ", host_isas(), ", or nothing"));
}

std::string host_isas() {
  std::string names;
  for (int i = 0; i <= static_cast<int>(last_host_isa); ++i)
    if (has(HostIsa(i))) names += (names.empty() ? "" : ", ") + std::string(name_of(HostIsa(i)));
  return names;
}

}  // namespace pagoda::detail
