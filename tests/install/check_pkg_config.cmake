# Installs, moves the prefix elsewhere, and compiles a C program with what pkg-config says.
cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/common.cmake)
install_to_prefix()
set(moved ${WORK_DIR}/moved)
file(RENAME ${PREFIX} ${moved})

set(ENV{PKG_CONFIG_PATH} ${moved}/${LIBDIR}/pkgconfig)
execute_process(COMMAND ${PKG_CONFIG} --modversion onepass OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE)
if(NOT found STREQUAL VERSION)
  message(FATAL_ERROR "pkg-config says version '${found}', not ${VERSION}")
endif()
execute_process(COMMAND ${PKG_CONFIG} --cflags --libs onepass
  OUTPUT_VARIABLE flags OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
separate_arguments(flags UNIX_COMMAND "${flags}")
run(${C_COMPILER} -std=c99 -pedantic -Wall -Wextra -Werror ${SANITIZE_FLAG}
  ${SOURCE_DIR}/c_consumer/consumer.c -o ${WORK_DIR}/consumer ${flags} -Wl,-rpath,${moved}/${LIBDIR})
run(${WORK_DIR}/consumer)
