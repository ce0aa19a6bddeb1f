# Packages of the installed files: cpack -G DEB, or TGZ. The Debian package has the static library with headers, and depends
# on the Kokkos that it was built with.
set(CPACK_PACKAGE_NAME pagoda)
set(CPACK_PACKAGE_VENDOR "The Pagoda authors")
set(CPACK_PACKAGE_CONTACT "The Pagoda authors <pagoda@authors.invalid>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_RESOURCE_FILE_README ${PROJECT_SOURCE_DIR}/README.md)
set(CPACK_STRIP_FILES OFF)
set(CPACK_GENERATOR DEB TGZ)

set(CPACK_DEBIAN_PACKAGE_NAME libpagoda-dev)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "g++, cmake (>= 3.25), libkokkos-dev (>= ${PAGODA_USES_KOKKOS_VERSION}), libkokkos-dev (<< ${PAGODA_USES_KOKKOS_VERSION}.~)")
if(PAGODA_MPI)
  set(CPACK_DEBIAN_PACKAGE_SUGGESTS "libopenmpi-dev") # only the component mpi needs it
endif()
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS OFF)
include(CPack)
