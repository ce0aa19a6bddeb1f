# The target docs: the pages of the public interface, by Doxygen, in BUILD/docs/html. Every public name needs a comment;
# a warning of Doxygen is an error.
find_package(Doxygen QUIET)
if(NOT DOXYGEN_FOUND)
  add_custom_target(docs
    COMMAND ${CMAKE_COMMAND} -E echo "There is no doxygen (Debian: apt install doxygen; then run CMake again)"
    COMMAND ${CMAKE_COMMAND} -E false)
  return()
endif()
set(DOXYGEN_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/docs)
set(DOXYGEN_PROJECT_BRIEF "${PROJECT_DESCRIPTION}")
set(DOXYGEN_STRIP_FROM_PATH ${PROJECT_SOURCE_DIR}/include ${PROJECT_BINARY_DIR}/include)
set(DOXYGEN_STRIP_FROM_INC_PATH ${DOXYGEN_STRIP_FROM_PATH})
set(DOXYGEN_EXCLUDE ${PROJECT_SOURCE_DIR}/include/pagoda/detail ${PROJECT_BINARY_DIR}/include/pagoda/export.hpp
    ${PROJECT_BINARY_DIR}/include/pagoda/mpi_export.hpp)
set(DOXYGEN_EXCLUDE_SYMBOLS pagoda::detail pagoda::detail::*)
set(DOXYGEN_FILE_PATTERNS *.hpp *.h *.md)
set(DOXYGEN_USE_MDFILE_AS_MAINPAGE ${PROJECT_SOURCE_DIR}/include/pagoda/README.md)
set(DOXYGEN_MACRO_EXPANSION YES)
set(DOXYGEN_EXPAND_ONLY_PREDEF YES)
set(DOXYGEN_PREDEFINED PAGODA_EXPORT= PAGODA_MPI_EXPORT= KOKKOS_FUNCTION= KOKKOS_INLINE_FUNCTION=)
set(DOXYGEN_JAVADOC_AUTOBRIEF YES)
set(DOXYGEN_SORT_MEMBER_DOCS NO)
set(DOXYGEN_DISTRIBUTE_GROUP_DOC YES)
set(DOXYGEN_HAVE_DOT NO) # the same pages with and without graphviz
set(DOXYGEN_QUIET YES)
set(DOXYGEN_WARN_IF_UNDOCUMENTED YES)
set(DOXYGEN_WARN_AS_ERROR FAIL_ON_WARNINGS)
doxygen_add_docs(docs ${PROJECT_SOURCE_DIR}/include/pagoda ${PROJECT_BINARY_DIR}/include/pagoda
  COMMENT "API pages: ${DOXYGEN_OUTPUT_DIRECTORY}/html/index.html")
