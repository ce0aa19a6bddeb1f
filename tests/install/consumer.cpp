// A program of a user's, built against an installed Pagoda and as a sub-project.
#include <pagoda/version.hpp>

#include <Kokkos_Core.hpp>
#include <cstdio>
#include <cstring>

int main(int argc, char** argv) {
  const Kokkos::ScopeGuard kokkos(argc, argv);
  std::printf("Pagoda %s\n", pagoda::version());
  return std::strcmp(pagoda::version(), PAGODA_VERSION_STRING);
}
