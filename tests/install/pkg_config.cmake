# cmake -DPREFIX=... -DC=... -DCXX=... -DPKG_CONFIG=... -DWITH_C=... -DSOURCE=... -DBUILD=... -P pkg_config.cmake
# Compiles and runs the consumers with the flags of pkg-config alone. PREFIX has been moved since Pagoda was installed.
file(GLOB_RECURSE files ${PREFIX}/*/pagoda.pc)
list(GET files 0 file)
cmake_path(GET file PARENT_PATH folder)
set(ENV{PKG_CONFIG_PATH} ${folder})
file(MAKE_DIRECTORY ${BUILD})

function(flags_of package out)
  execute_process(COMMAND ${PKG_CONFIG} --cflags --libs ${package}
    OUTPUT_VARIABLE text OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  separate_arguments(list UNIX_COMMAND "${text}")
  set(${out} ${list} PARENT_SCOPE)
endfunction()

flags_of(pagoda flags)
execute_process(COMMAND ${CXX} ${SOURCE}/main.cpp ${SOURCE}/uses.cpp -o ${BUILD}/cpp ${flags} COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${BUILD}/cpp COMMAND_ERROR_IS_FATAL ANY)
if(WITH_C)
  flags_of(pagoda_c flags)
  execute_process(COMMAND ${C} -std=c99 ${SOURCE}/main.c -o ${BUILD}/c ${flags} COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND ${BUILD}/c COMMAND_ERROR_IS_FATAL ANY)
endif()
