# The element types of caches, from the rows of include/pagoda/detail/type_table.hpp.
set(PAGODA_TYPE_TABLE ${PROJECT_SOURCE_DIR}/include/pagoda/detail/type_table.hpp)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PAGODA_TYPE_TABLE})
set(PAGODA_ALL_TYPES "")
set(PAGODA_PLAIN_TYPES "") # without scales
set(PAGODA_BLOCK_SCALED_TYPES "")
set(PAGODA_ROW_FORMAT_TYPES "") # with scales in the rows
file(READ ${PAGODA_TYPE_TABLE} table)
string(REGEX MATCHALL "\n *X\\([^\n\\]+" rows "${table}") # up to the backslash that ends a line
foreach(row IN LISTS rows)
  if(NOT row MATCHES "X\\(([a-z0-9_]+), *[^,]+, *[0-9]+, *[0-9]+, *[^,]+, *(true|false), *(none|optional|required|in_rows), *([0-9]+), *[^,]+, *[^,]+, *\"[^\"]+\"\\)")
    message(FATAL_ERROR "${PAGODA_TYPE_TABLE}: this row lacks a column, or has one that cannot be: ${row}")
  endif()
  list(APPEND PAGODA_ALL_TYPES ${CMAKE_MATCH_1})
  if(CMAKE_MATCH_3 STREQUAL "none" AND CMAKE_MATCH_4 EQUAL 0)
    list(APPEND PAGODA_PLAIN_TYPES ${CMAKE_MATCH_1})
  elseif(CMAKE_MATCH_3 STREQUAL "in_rows")
    list(APPEND PAGODA_ROW_FORMAT_TYPES ${CMAKE_MATCH_1})
  elseif(CMAKE_MATCH_4 GREATER 0)
    list(APPEND PAGODA_BLOCK_SCALED_TYPES ${CMAKE_MATCH_1})
  endif()
endforeach()

set(PAGODA_TYPES "${PAGODA_ALL_TYPES}" CACHE STRING "Data types with compiled kernels")
foreach(type IN LISTS PAGODA_TYPES)
  if(NOT type IN_LIST PAGODA_ALL_TYPES)
    list(JOIN PAGODA_ALL_TYPES ", " allowed)
    message(FATAL_ERROR "PAGODA_TYPES names ${type}; allowed: ${allowed}")
  endif()
endforeach()

# PAGODA_TYPES by kind: plain; quantized with scales beside the rows, of which some have block scales and the others floats
# alone; with a row format.
set(PAGODA_QUANTIZED_TYPES ${PAGODA_TYPES})
list(REMOVE_ITEM PAGODA_QUANTIZED_TYPES ${PAGODA_PLAIN_TYPES} ${PAGODA_ROW_FORMAT_TYPES})
set(PAGODA_FLOAT_SCALED_TYPES ${PAGODA_QUANTIZED_TYPES})
list(REMOVE_ITEM PAGODA_FLOAT_SCALED_TYPES ${PAGODA_BLOCK_SCALED_TYPES} "")
set(PAGODA_PLAIN_TYPES ${PAGODA_TYPES})
list(REMOVE_ITEM PAGODA_PLAIN_TYPES ${PAGODA_QUANTIZED_TYPES} ${PAGODA_ROW_FORMAT_TYPES} "")
set(PAGODA_BLOCK_SCALED_TYPES ${PAGODA_QUANTIZED_TYPES})
list(REMOVE_ITEM PAGODA_BLOCK_SCALED_TYPES ${PAGODA_FLOAT_SCALED_TYPES} "")
set(rest ${PAGODA_TYPES})
list(REMOVE_ITEM rest ${PAGODA_PLAIN_TYPES} ${PAGODA_QUANTIZED_TYPES} "")
set(PAGODA_ROW_FORMAT_TYPES ${rest})
