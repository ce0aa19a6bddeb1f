// SPDX-License-Identifier: Apache-2.0
// Leaks that AddressSanitizer does not report.

extern "C" const char* __lsan_default_suppressions();  // AddressSanitizer calls it

extern "C" const char* __lsan_default_suppressions() { return "leak:libomp"; }
