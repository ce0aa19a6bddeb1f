# Flags of what is built here. None of them reaches a user's own targets: they are linked PRIVATE.
add_library(pagoda_flags INTERFACE)

# Only what g++, clang, hipcc and nvcc's host compiler all take. What nvcc generates for the host trips
# -Wpedantic (line markers), so that one stays away from it.
target_compile_options(pagoda_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wcast-qual -Woverloaded-virtual>
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<NOT:$<BOOL:${PAGODA_HAS_CUDA}>>>:-Wpedantic>
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${PAGODA_WERROR}>>:-Werror>)

# Kernels call constexpr functions of our own and of std::array; clang allows that unasked.
if(PAGODA_HAS_CUDA AND NOT CMAKE_CXX_COMPILER_ID MATCHES Clang)
  target_compile_options(pagoda_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:--expt-relaxed-constexpr>)
endif()

if(PAGODA_NATIVE)
  target_compile_options(pagoda_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-march=native>)
endif()

if(PAGODA_BOUNDS_CHECK)
  target_compile_definitions(pagoda_flags INTERFACE PAGODA_DEBUG_BOUNDS _GLIBCXX_ASSERTIONS)
  # A View's own checks are inline code alone, so they work over a Kokkos that was built without them.
  if(NOT DEBUG_BOUNDS_CHECK IN_LIST PAGODA_USES_KOKKOS_OPTIONS)
    target_compile_definitions(pagoda_flags INTERFACE KOKKOS_ENABLE_DEBUG_BOUNDS_CHECK)
  endif()
endif()

if(PAGODA_SANITIZE)
  set(sanitize -fsanitize=${PAGODA_SANITIZE} -fno-omit-frame-pointer -g)
  if(PAGODA_SANITIZE MATCHES undefined)
    list(APPEND sanitize -fno-sanitize-recover=undefined)
  endif()
  target_compile_options(pagoda_flags INTERFACE ${sanitize})
  target_link_options(pagoda_flags INTERFACE ${sanitize})
endif()

if(PAGODA_SANITIZE MATCHES thread)
  include(${PROJECT_SOURCE_DIR}/tests/tsan/PagodaTsan.cmake)
endif()
