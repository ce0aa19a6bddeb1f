# Finding Kokkos, for this project and, installed, for PagodaConfig.cmake.

# The first Kokkos of CMake's search order that is new enough, whatever its major version. Asking
# find_package for a version would not do: some version files answer only for their own major version,
# and asking for 5 and then for 4.6 would pass over a 4.7 that the user has pointed at.
macro(pagoda_find_kokkos)
  set(PAGODA_KOKKOS_REASON "")
  if(NOT TARGET Kokkos::kokkos)
    find_package(Kokkos 999 EXACT QUIET CONFIG) # never found; lists what there is
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

# Debian's libkokkos-dev (seen in 5.2.2-2) names libkokkosalgorithms.a and libkokkossimd.a, which it
# does not ship, and CMake stops at the first missing file. Both are empty: their code is in headers.
# So tell the check in the exported targets file that it need not look at these two (it skips what is
# an Apple framework), then give both targets a file that does exist. CMake 3.28 or newer only.
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

# What an installed Kokkos says of itself, asked of one that is part of this build (fetched, or a parent's).
macro(pagoda_describe_kokkos)
  if(NOT Kokkos_VERSION AND Kokkos_SOURCE_DIR)
    get_directory_property(Kokkos_VERSION DIRECTORY ${Kokkos_SOURCE_DIR} DEFINITION Kokkos_VERSION)
    get_directory_property(Kokkos_DEVICES DIRECTORY ${Kokkos_SOURCE_DIR} DEFINITION KOKKOS_ENABLED_DEVICES)
    get_directory_property(Kokkos_OPTIONS DIRECTORY ${Kokkos_SOURCE_DIR} DEFINITION KOKKOS_ENABLED_OPTIONS)
    get_directory_property(Kokkos_ARCH DIRECTORY ${Kokkos_SOURCE_DIR} DEFINITION KOKKOS_ENABLED_ARCH_LIST)
  endif()
endmacro()

# A preset says what it builds for; a Kokkos made for something else is refused here, by name, and not
# by a wrong-architecture crash later.
function(pagoda_check_kokkos)
  foreach(kind IN ITEMS DEVICE ARCH)
    if(kind STREQUAL "DEVICE")
      set(given "${Kokkos_DEVICES}")
    else()
      set(given "${Kokkos_ARCH}")
    endif()
    string(TOUPPER "${given}" given)
    string(TOUPPER "${PAGODA_KOKKOS_${kind}}" wanted)
    if(wanted AND given AND NOT wanted IN_LIST given)
      message(FATAL_ERROR "PAGODA_KOKKOS_${kind} is ${wanted}, but the Kokkos found has: ${given} (${Kokkos_DIR}). "
        "Point Kokkos_ROOT at one that was built for it.")
    endif()
  endforeach()
endfunction()
