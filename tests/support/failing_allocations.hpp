// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace pagoda::test {

/// While one of these is alive, it counts what asks the global operator new for memory, and makes the n-th request
/// (from 0) fail: it throws std::bad_alloc, or returns null where it may not throw. lasting: all later ones fail too.
/// For executables that link failing_allocations.cpp, which replaces operator new. One at a time.
class FailingAllocations {
 public:
  static constexpr long never = -1;

  explicit FailingAllocations(long n = never, bool lasting = false);
  ~FailingAllocations();
  FailingAllocations(const FailingAllocations&)            = delete;
  FailingAllocations& operator=(const FailingAllocations&) = delete;

  /// Requests so far, those that failed included.
  static long count();
};

}  // namespace pagoda::test
