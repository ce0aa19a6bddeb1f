// SPDX-License-Identifier: Apache-2.0
// Appends the message of each pagoda::InvalidArgument that is thrown to the file that PAGODA_ERRORS_LOG names, if it is
// set: a message and a zero byte. tests/errors makes a table of them. The program's __cxa_throw comes before that of
// the C++ runtime.
#include <pagoda/error.hpp>

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <typeinfo>

extern "C" [[noreturn]] void __cxa_throw(void* object, std::type_info* type, void (*destroy)(void*)) {
  static const char* const path = std::getenv("PAGODA_ERRORS_LOG");
  if (path && *type == typeid(pagoda::InvalidArgument)) {
    if (std::FILE* const log = std::fopen(path, "a")) {
      const auto* const error = static_cast<const pagoda::InvalidArgument*>(object);
      std::fprintf(log, "%s%c", error->what(), '\0');
      std::fclose(log);
    }
  }
  using Throw               = void (*)(void*, std::type_info*, void (*)(void*));
  static const auto runtime = reinterpret_cast<Throw>(dlsym(RTLD_NEXT, "__cxa_throw"));
  runtime(object, type, destroy);
  std::abort();
}
