# cmake -DBUILD=... -DPREFIX=... -DCONFIG=... -P shared.cmake: installs the shared libraries of the project subdirectory.
file(REMOVE_RECURSE ${PREFIX})
execute_process(COMMAND ${CMAKE_COMMAND} -DCONSUMER_INSTALLS=ON -DPAGODA_INSTALL=ON ${BUILD} COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${BUILD} --config ${CONFIG} COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --prefix ${PREFIX} --config ${CONFIG} COMMAND_ERROR_IS_FATAL ANY)
