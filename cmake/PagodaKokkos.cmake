# Finding Kokkos, for this project and, installed, for PagodaConfig.cmake.

# The first Kokkos of CMake's search order that is new enough, whatever its major version. find_package with a version
# does not work: some version files accept only their own major version, and a search for 5 and then for 4.6 would skip
# a 4.7 that the user named.
macro(pagoda_find_kokkos)
  set(PAGODA_KOKKOS_REASON "")
  if(NOT TARGET Kokkos::kokkos)
    find_package(Kokkos 999 EXACT QUIET CONFIG) # never found; lists the candidates
    set(_pagoda_kokkos_dir "")
    foreach(_pagoda_config _pagoda_version IN ZIP_LISTS Kokkos_CONSIDERED_CONFIGS Kokkos_CONSIDERED_VERSIONS)
      if(_pagoda_version VERSION_LESS 4.6)
        string(APPEND PAGODA_KOKKOS_REASON "Too old: ${_pagoda_config} (${_pagoda_version}). ")
      elseif(NOT _pagoda_kokkos_dir)
        cmake_path(GET _pagoda_config PARENT_PATH _pagoda_kokkos_dir)
      endif()
    endforeach()
    if(_pagoda_kokkos_dir)
      set(Kokkos_DIR "${_pagoda_kokkos_dir}" CACHE PATH "Where KokkosConfig.cmake lies" FORCE)
      _pagoda_debian_kokkos_before("${_pagoda_kokkos_dir}")
      find_package(Kokkos CONFIG REQUIRED PATHS "${_pagoda_kokkos_dir}" NO_DEFAULT_PATH)
      _pagoda_debian_kokkos_after()
    endif()
  endif()
endmacro()

# Debian's libkokkos-dev (seen in 5.2.2-2) names libkokkosalgorithms.a and libkokkossimd.a, which it does not ship, and
# CMake stops at the first missing file. Both are empty: their code is in headers. So the check in the exported targets
# file is made to skip these two (as it skips Apple frameworks), and both targets get a file that exists. CMake 3.28 or
# newer only.
macro(_pagoda_debian_kokkos_before dir)
  foreach(_pagoda_lib IN ITEMS kokkosalgorithms kokkossimd)
    file(GLOB _pagoda_archive "${dir}/../../lib${_pagoda_lib}.*")
    if(NOT _pagoda_archive)
      set("_cmake_import_check_xcframework_for_Kokkos::${_pagoda_lib}" "${dir}")
    endif()
  endforeach()
endmacro()

function(_pagoda_debian_kokkos_after)
  foreach(lib IN ITEMS kokkosalgorithms kokkossimd)
    if(TARGET Kokkos::${lib})
      get_target_property(configs Kokkos::${lib} IMPORTED_CONFIGURATIONS)
      foreach(config IN LISTS configs)
        get_target_property(file Kokkos::${lib} IMPORTED_LOCATION_${config})
        if(file AND NOT EXISTS "${file}")
          get_target_property(core Kokkos::kokkoscore IMPORTED_LOCATION_${config})
          set_target_properties(Kokkos::${lib} PROPERTIES IMPORTED_LOCATION_${config} "${core}")
        endif()
      endforeach()
    endif()
  endforeach()
endfunction()

# pagoda_describe_kokkos(PREFIX): reads from KokkosCore_config.h what the Kokkos in use was built for. The variables of
# find_package(Kokkos) are not used, because they exist only in the directory that called it, while its targets may be
# global or part of this build. Sets in the caller's scope:
#   PREFIX_VERSION   such as 4.6.99
#   PREFIX_DEVICES   the execution spaces, such as CUDA;OPENMP
#   PREFIX_ARCH      such as HOPPER;HOPPER90
#   PREFIX_OPTIONS   the other KOKKOS_ENABLE_..., such as DEBUG_BOUNDS_CHECK
function(pagoda_describe_kokkos prefix)
  get_target_property(folders Kokkos::kokkoscore INTERFACE_INCLUDE_DIRECTORIES)
  string(REGEX REPLACE "\\$<[A-Z_]+:|>" "" folders "${folders}") # $<BUILD_INTERFACE:folder>
  set(header "")
  foreach(folder IN LISTS folders)
    if(NOT header AND EXISTS "${folder}/KokkosCore_config.h")
      set(header "${folder}/KokkosCore_config.h")
    endif()
  endforeach()
  if(NOT header)
    message(FATAL_ERROR "Pagoda cannot tell what Kokkos was built for: there is no KokkosCore_config.h in the include "
      "directories of the target Kokkos::kokkoscore (${folders})")
  endif()
  file(STRINGS "${header}" lines REGEX "^[ \t]*#[ \t]*define[ \t]+KOKKOS_")
  set(devices "")
  set(options "")
  set(arch "")
  foreach(line IN LISTS lines)
    if(line MATCHES "KOKKOS_VERSION_(MAJOR|MINOR|PATCH)[ \t]+([0-9]+)")
      set(version_${CMAKE_MATCH_1} ${CMAKE_MATCH_2})
    elseif(line MATCHES "KOKKOS_ENABLE_(SERIAL|OPENMP|THREADS|HPX|CUDA|HIP|SYCL|OPENACC|OPENMPTARGET)[ \t]*$")
      list(APPEND devices ${CMAKE_MATCH_1})
    elseif(line MATCHES "KOKKOS_ENABLE_([A-Z0-9_]+)")
      list(APPEND options ${CMAKE_MATCH_1})
    elseif(line MATCHES "KOKKOS_ARCH_([A-Z0-9_]+)")
      list(APPEND arch ${CMAKE_MATCH_1})
    endif()
  endforeach()
  set(${prefix}_VERSION "${version_MAJOR}.${version_MINOR}.${version_PATCH}" PARENT_SCOPE)
  set(${prefix}_DEVICES "${devices}" PARENT_SCOPE)
  set(${prefix}_ARCH "${arch}" PARENT_SCOPE)
  set(${prefix}_OPTIONS "${options}" PARENT_SCOPE)
endfunction()

# A preset names its device and architecture. A Kokkos for another one is refused here, not by a crash later.
function(pagoda_check_kokkos)
  foreach(kind IN ITEMS DEVICE ARCH)
    if(kind STREQUAL "DEVICE")
      set(given "${PAGODA_USES_KOKKOS_DEVICES}")
    else()
      set(given "${PAGODA_USES_KOKKOS_ARCH}")
    endif()
    string(TOUPPER "${PAGODA_KOKKOS_${kind}}" wanted)
    if(wanted AND NOT wanted IN_LIST given)
      message(FATAL_ERROR "PAGODA_KOKKOS_${kind} is ${wanted}, but the Kokkos found has: ${given} (${Kokkos_DIR}). "
        "Point Kokkos_ROOT at one that was built for it.")
    endif()
  endforeach()
endfunction()
