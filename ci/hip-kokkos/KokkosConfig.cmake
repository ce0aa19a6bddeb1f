# A Kokkos for HIP to compile against, without libraries, because no distribution packages one. Its headers are those of
# Debian's libkokkos-dev, which contain every backend. Only the four headers that Kokkos' configuration writes are made
# here, as with Kokkos_ENABLE_HIP and Kokkos_ARCH_<PAGODA_KOKKOS_ARCH>.
set(_headers /usr/include/kokkos)
set(_made ${CMAKE_BINARY_DIR}/hip-kokkos)

string(REGEX REPLACE "^AMD_" "" _gfx "${PAGODA_KOKKOS_ARCH}")
string(TOLOWER "${_gfx}" _gfx)
if(_gfx MATCHES "^gfx9(..)$")
  string(TOUPPER "VEGA;VEGA${CMAKE_MATCH_1}" _family)
else()
  set(_family NAVI "NAVI${_gfx}")
  list(TRANSFORM _family REPLACE "gfx" "")
endif()
set(_defines "#define KOKKOS_ENABLE_HIP\n#define KOKKOS_ARCH_AMD_GPU \"${_gfx}\"\n")
foreach(_arch IN ITEMS ${PAGODA_KOKKOS_ARCH} ${_family})
  string(APPEND _defines "#define KOKKOS_ARCH_${_arch}\n")
endforeach()
file(READ ${_headers}/KokkosCore_config.h _text)
string(REPLACE "#define KOKKOS_ENABLE_OPENMP\n" "#define KOKKOS_ENABLE_OPENMP\n${_defines}" _text "${_text}")
file(CONFIGURE OUTPUT ${_made}/KokkosCore_config.h CONTENT "${_text}" @ONLY)
file(CONFIGURE OUTPUT ${_made}/KokkosCore_Config_FwdBackend.hpp @ONLY
  CONTENT "#pragma once\n#include <fwd/Kokkos_Fwd_OPENMP.hpp>\n#include <fwd/Kokkos_Fwd_HIP.hpp>\n")
file(CONFIGURE OUTPUT ${_made}/KokkosCore_Config_SetupBackend.hpp @ONLY
  CONTENT "#pragma once\n#include <setup/Kokkos_Setup_HIP.hpp>\n")
file(CONFIGURE OUTPUT ${_made}/KokkosCore_Config_DeclareBackend.hpp @ONLY
  CONTENT "#pragma once\n#include <decl/Kokkos_Declare_OPENMP.hpp>\n#include <decl/Kokkos_Declare_HIP.hpp>\n")
file(READ ${_headers}/desul/atomics/Config.hpp _text)
string(REPLACE "/* #undef DESUL_ATOMICS_ENABLE_HIP */" "#define DESUL_ATOMICS_ENABLE_HIP" _text "${_text}")
file(CONFIGURE OUTPUT ${_made}/desul/atomics/Config.hpp CONTENT "${_text}" @ONLY)

find_package(OpenMP REQUIRED COMPONENTS CXX)
add_library(Kokkos::kokkoscore INTERFACE IMPORTED)
target_include_directories(Kokkos::kokkoscore INTERFACE ${_made} ${_headers})
target_compile_features(Kokkos::kokkoscore INTERFACE cxx_std_20)
target_compile_options(Kokkos::kokkoscore INTERFACE -x hip -fno-gpu-rdc --offload-arch=${_gfx})
target_link_libraries(Kokkos::kokkoscore INTERFACE OpenMP::OpenMP_CXX)
add_library(Kokkos::kokkos INTERFACE IMPORTED)
target_link_libraries(Kokkos::kokkos INTERFACE Kokkos::kokkoscore)
