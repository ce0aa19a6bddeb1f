# What makes ThreadSanitizer see the truth about Kokkos on OpenMP. All of it was tried on Kokkos 5.2 as
# Debian ships it (not instrumented, linked with libgomp), with clang 21:
#
#   - libgomp tells TSan nothing, so each fork and join is reported (48 reports for one correct program).
#     clang's libomp does tell, through its tool libarcher. libkokkoscore.so asks for libgomp.so.1 by name;
#     LLVM ships libomp under that name too, in the folder of libarcher. So that folder goes first in the
#     search path of our executables (an RPATH, which unlike a RUNPATH also serves the libraries' needs).
#   - What libkokkoscore.so does by itself is not instrumented: __tsan_default_options (tsan.cpp) has TSan
#     ignore what it passes to memset, mutexes and the like.
#   - TSan knows nothing of fences, and the barrier of a Kokkos team is a fence and a relaxed atomic:
#     kokkos_barrier.hpp, included first everywhere, makes these atomics acquire and release, which is what
#     the fences mean. The waiting half lies in libkokkoscore.so and is overridden by ours (tsan.cpp).
#
# Nothing is suppressed: no report about our code or about Kokkos' headers is hidden. The tests tsan.* prove
# both sides: racy programs must be reported, right ones must be silent. What TSan still gets wrong:
#
#   - a release or acquire made by Kokkos::memory_fence() around a relaxed atomic. Write the order into the
#     atomic: desul::atomic_fetch_add(p, 1, desul::MemoryOrderSeqCst{}, desul::MemoryScopeDevice{}). On the
#     host SeqCst, not AcqRel: desul has no AcqRel of its own there and starts from a plain read, a race.
#   - teams of two threads or more under Schedule<Dynamic>: their barrier is inside libkokkoscore.so.
if(NOT CMAKE_CXX_COMPILER_ID MATCHES Clang)
  message(FATAL_ERROR "PAGODA_SANITIZE=thread needs clang and its libomp (libgomp tells ThreadSanitizer "
    "nothing, so all it reports would be false): set CMAKE_CXX_COMPILER=clang++.")
endif()
pagoda_use_libomp()
target_compile_options(pagoda_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:SHELL:-include ${CMAKE_CURRENT_LIST_DIR}/kokkos_barrier.hpp>)
add_library(pagoda_tsan OBJECT ${CMAKE_CURRENT_LIST_DIR}/tsan.cpp)
target_link_libraries(pagoda_tsan PRIVATE Kokkos::kokkos pagoda_flags)
target_link_libraries(pagoda_flags INTERFACE $<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:$<TARGET_OBJECTS:pagoda_tsan>>)
