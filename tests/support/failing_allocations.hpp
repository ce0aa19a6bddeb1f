// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace pagoda::test {

/// While an object lives, it counts calls of the global operator new and makes the n-th (from 0) fail: it throws
/// std::bad_alloc, or returns null if it must not throw. lasting: all later calls fail too. For executables that link
/// failing_allocations.cpp, which replaces operator new. Only one object at a time.
class FailingAllocations {
 public:
  static constexpr long never = -1;

  explicit FailingAllocations(long n = never, bool lasting = false);
  ~FailingAllocations();
  FailingAllocations(const FailingAllocations&)            = delete;
  FailingAllocations& operator=(const FailingAllocations&) = delete;

  /// Calls so far, including failed ones.
  static long count();
};

}  // namespace pagoda::test
