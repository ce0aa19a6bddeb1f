# Flags of Pagoda's targets. They are linked PRIVATE, so users' targets do not get them.
add_library(pagoda_flags INTERFACE)

# Only flags that g++, clang, hipcc and nvcc's host compiler accept. The host code that nvcc generates triggers
# -Wpedantic (line markers), so nvcc does not get this flag.
target_compile_options(pagoda_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wnon-virtual-dtor -Wcast-qual -Woverloaded-virtual>
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<NOT:$<BOOL:${PAGODA_HAS_CUDA}>>>:-Wpedantic>
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${PAGODA_WERROR}>>:-Werror>)

# In a unity build a local name may be that of another source's global.
if(NOT CMAKE_UNITY_BUILD)
  target_compile_options(pagoda_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wshadow>)
endif()

# Kernels call constexpr functions of our own and of std::array; clang allows that by default.
if(PAGODA_HAS_CUDA AND NOT CMAKE_CXX_COMPILER_ID MATCHES Clang)
  target_compile_options(pagoda_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:--expt-relaxed-constexpr>)
endif()

if(PAGODA_NATIVE)
  target_compile_options(pagoda_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-march=native>)
endif()

if(PAGODA_BOUNDS_CHECK)
  target_compile_definitions(pagoda_flags INTERFACE PAGODA_DEBUG_BOUNDS _GLIBCXX_ASSERTIONS)
  # A View's bounds checks are inline code, so they work with a Kokkos that was built without them.
  if(NOT DEBUG_BOUNDS_CHECK IN_LIST PAGODA_USES_KOKKOS_OPTIONS)
    target_compile_definitions(pagoda_flags INTERFACE KOKKOS_ENABLE_DEBUG_BOUNDS_CHECK)
  endif()
endif()

# pagoda_use_libomp(): programs built by clang load its libomp for a Kokkos that was linked with libgomp, too. LLVM ships
# libomp under the name libgomp.so.1 as well, in the folder of libarcher.
function(pagoda_use_libomp)
  if(NOT PAGODA_HAS_OPENMP)
    return()
  endif()
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=libarcher.so
                  OUTPUT_VARIABLE archer OUTPUT_STRIP_TRAILING_WHITESPACE)
  file(REAL_PATH "${archer}" archer)
  cmake_path(GET archer PARENT_PATH folder)
  if(NOT EXISTS "${archer}" OR NOT EXISTS "${folder}/libgomp.so.1")
    message(FATAL_ERROR "clang has no libarcher.so with a libgomp.so.1 beside it. "
      "Install LLVM's OpenMP (Debian: libomp-dev), or use a Kokkos without OpenMP.")
  endif()
  target_link_options(pagoda_flags INTERFACE -Wl,--disable-new-dtags,-rpath,${folder})
endfunction()

if(PAGODA_SANITIZE)
  set(sanitize -fsanitize=${PAGODA_SANITIZE} -fno-omit-frame-pointer -g1)
  if(PAGODA_SANITIZE MATCHES undefined)
    list(APPEND sanitize -fno-sanitize-recover=undefined)
  endif()
  if(PAGODA_SANITIZE MATCHES address AND CMAKE_CXX_COMPILER_ID MATCHES Clang)
    pagoda_use_libomp()
  endif()
  target_compile_options(pagoda_flags INTERFACE ${sanitize})
  target_link_options(pagoda_flags INTERFACE ${sanitize})
endif()

if(PAGODA_SANITIZE MATCHES thread)
  include(${PROJECT_SOURCE_DIR}/tests/tsan/PagodaTsan.cmake)
endif()
