// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#endif

namespace pagoda::detail {

/// Asks the system to back unwritten host memory with large pages (2 MiB on x86). A decode reads the whole cache, and
/// shuffled cache pages cause TLB misses (a tenth of its time, bench/NOTES.md). If the system refuses, nothing changes.
inline void ask_for_huge_pages([[maybe_unused]] void* data, [[maybe_unused]] std::size_t bytes) {
#if defined(__linux__)
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE)), at = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t begin = (at + page - 1) / page * page, end = (at + bytes) / page * page;
  if (begin < end) madvise(static_cast<std::byte*>(data) + (begin - at), end - begin, MADV_HUGEPAGE);
#endif
}

}  // namespace pagoda::detail
