# cmake -DCPACK=... -DCONFIG=... -DTO=... -P package.cmake: makes the Debian package and unpacks it in TO/root.
file(REMOVE_RECURSE ${TO})
file(MAKE_DIRECTORY ${TO}/root)
execute_process(COMMAND ${CPACK} -G DEB --config ${CONFIG} -B ${TO} COMMAND_ERROR_IS_FATAL ANY)
file(GLOB package ${TO}/*.deb)
# A Debian package is an archive of archives.
file(ARCHIVE_EXTRACT INPUT ${package} DESTINATION ${TO}/parts)
file(GLOB files ${TO}/parts/data.tar.*)
file(ARCHIVE_EXTRACT INPUT ${files} DESTINATION ${TO}/root)
