# pagoda_precompile_headers(name main): compiles the headers that most tests include once for all tests instead of once in
# each source. The call with main as name compiles them; the targets of later calls with this main must have its flags.
# CMAKE_DISABLE_PRECOMPILE_HEADERS=ON turns this off.
function(pagoda_precompile_headers name main)
  if(PAGODA_HAS_CUDA OR PAGODA_HAS_HIP) # GPU compilers read a header once for each machine
    return()
  endif()
  if(name STREQUAL main)
    target_precompile_headers(${name} PRIVATE <Kokkos_Core.hpp> <gtest/gtest.h> <pagoda/pagoda.hpp>
      ${PROJECT_SOURCE_DIR}/tests/support/refusal.hpp ${PROJECT_SOURCE_DIR}/tests/support/scene.hpp
      ${PROJECT_SOURCE_DIR}/tests/support/spaces.hpp)
  else()
    target_precompile_headers(${name} REUSE_FROM ${main})
  endif()
  # ccache needs these flags, and CCACHE_SLOPPINESS=pch_defines,time_macros, to store sources with precompiled headers.
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    target_compile_options(${name} PRIVATE -fpch-preprocess)
  elseif(CMAKE_CXX_COMPILER_ID MATCHES Clang)
    target_compile_options(${name} PRIVATE "SHELL:-Xclang -fno-pch-timestamp")
  endif()
endfunction()
