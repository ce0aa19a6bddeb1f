// SPDX-License-Identifier: Apache-2.0
// A user's program, built against an installed Pagoda and with Pagoda as a sub-project. Pagoda is called from uses.cpp,
// which may be in a shared library of the user's; its exceptions are caught here.
#include <pagoda/error.hpp>
#include <pagoda/version.hpp>

#include "uses.hpp"

#include <Kokkos_Core.hpp>
#include <cstdio>
#include <cstring>

namespace {

template <class Exception>
bool is_thrown_by(void (*provoke)()) {
  try {
    provoke();
  } catch (const Exception& e) {
    return std::strstr(e.what(), "pagoda::") != nullptr;
  } catch (...) {
    return false;
  }
  return false;
}

bool all_right = true;

void report(const char* what, bool right) {
  std::printf("%s: %s\n", what, right ? "right" : "wrong");
  all_right = all_right && right;
}

}  // namespace

int main(int argc, char** argv) {
  const Kokkos::ScopeGuard kokkos(argc, argv);
  report("version", std::strcmp(pagoda::version(), PAGODA_VERSION_STRING) == 0);
  report("decode", decode_is_right());
  report("other entries", everything_else_is_right());
  report("InvalidArgument", is_thrown_by<pagoda::InvalidArgument>(provoke_invalid_argument));
  report("OutOfCapacity", is_thrown_by<pagoda::OutOfCapacity>(provoke_out_of_capacity));
  return all_right ? 0 : 1;
}
