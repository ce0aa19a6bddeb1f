# pagoda_build_info: a private header with the context of benchmark figures. It is rewritten when the checked-out commit
# changes, and only the file that prints it is compiled again.
function(pagoda_build_info)
  set(git_hash "unknown")
  if(DEFINED ENV{PAGODA_GIT_HASH}) # ci/ builds where the repository may not be visible
    set(git_hash "$ENV{PAGODA_GIT_HASH}")
  else()
    find_package(Git QUIET)
    if(GIT_FOUND)
      execute_process(COMMAND ${GIT_EXECUTABLE} -c safe.directory=* describe --always --dirty --abbrev=12
                      WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
                      OUTPUT_VARIABLE described RESULT_VARIABLE failed ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
      if(NOT failed)
        set(git_hash "${described}")
      endif()
    endif()
  endif()
  foreach(file IN ITEMS .git/HEAD .git/logs/HEAD)
    if(EXISTS ${PROJECT_SOURCE_DIR}/${file})
      set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
    endif()
  endforeach()
  string(TOUPPER "${CMAKE_BUILD_TYPE}" type)
  string(STRIP "${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${type}}" flags)
  if(PAGODA_NATIVE)
    string(APPEND flags " -march=native")
  endif()
  set(compiler "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}")
  configure_file(${PROJECT_SOURCE_DIR}/cmake/pagoda_build_info.hpp.in
                 ${PROJECT_BINARY_DIR}/private/pagoda_build_info.hpp @ONLY)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/pagoda_build_info.json.in
                 ${PROJECT_BINARY_DIR}/pagoda_build_info.json @ONLY) # for ci/gpu.sh
endfunction()
