/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PAGODA_TESTS_C_CHECK_H
#define PAGODA_TESTS_C_CHECK_H

#include <pagoda/pagoda.h>

#include <stdio.h>
#include <string.h>

/* Checks that go on after a failure. A test's main returns failed_checks() != 0. */
static int failures = 0, checks = 0;

static inline void record(int ok, const char* text, const char* file, int line) {
  ++checks;
  if (ok) return;
  ++failures;
  printf("%s:%d: failed: %s (last error: %s)\n", file, line, text, pagoda_last_error());
  fflush(stdout); /* the program may crash after a failure */
}
static inline int failed_checks(void) {
  printf("%d of %d checks failed\n", failures, checks);
  return failures != 0 || checks == 0;
}

#define CHECK(condition) record((condition) != 0, #condition, __FILE__, __LINE__)
#define CHECK_OK(call) record((call) == PAGODA_SUCCESS, #call, __FILE__, __LINE__)

/* The call returns this status, and the message contains the text. */
static inline void record_error(pagoda_status got, pagoda_status expected, const char* text, const char* call,
                                const char* file, int line) {
  const int ok = got == expected && strstr(pagoda_last_error(), text) != NULL;
  if (!ok)
    printf("got %s, expected %s with the text \"%s\"\n", pagoda_status_name(got), pagoda_status_name(expected), text);
  record(ok, call, file, line);
}
#define CHECK_ERROR(call, status, text) record_error((call), (status), (text), #call, __FILE__, __LINE__)
#define CHECK_INVALID(call, text) CHECK_ERROR(call, PAGODA_INVALID_ARGUMENT, text)

#endif
