# Installs, then configures, builds and runs projects that know nothing but the prefix.
cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/common.cmake)
install_to_prefix()

# Standard headers and our own are all that an installed header may include.
file(GLOB_RECURSE headers ${PREFIX}/include/*)
if(NOT headers)
  message(FATAL_ERROR "no header was installed to ${PREFIX}/include")
endif()
foreach(header IN LISTS headers)
  file(STRINGS ${header} includes REGEX "^ *# *include")
  foreach(line IN LISTS includes)
    if(NOT line MATCHES "^#include (<[a-z_]+>|<std[a-z]+\\.h>|\"onepass/[a-z_]+\\.h\")$")
      message(FATAL_ERROR "${header}: neither a standard header nor one of onepass: ${line}")
    endif()
  endforeach()
endforeach()

function(build_project source)
  cmake_path(GET source FILENAME name)
  set(build ${WORK_DIR}/build_${name})
  # Nothing that onepass was built with may be looked for.
  run(${CMAKE_COMMAND} -S ${source} -B ${build} -G "${GENERATOR}" -DCMAKE_BUILD_TYPE=Debug
    -DCMAKE_PREFIX_PATH=${PREFIX} -DEXPECTED_VERSION=${VERSION}
    -DCMAKE_C_COMPILER=${C_COMPILER} -DCMAKE_CXX_COMPILER=${CXX_COMPILER}
    -DCMAKE_C_FLAGS=${SANITIZE_FLAG} -DCMAKE_CXX_FLAGS=${SANITIZE_FLAG}
    -DCMAKE_DISABLE_FIND_PACKAGE_hwy=ON -DCMAKE_DISABLE_FIND_PACKAGE_fmt=ON -DCMAKE_DISABLE_FIND_PACKAGE_OpenMP=ON)
  run(${CMAKE_COMMAND} --build ${build})
  foreach(program IN LISTS ARGN)
    run(${build}/${program})
  endforeach()
endfunction()

build_project(${SOURCE_DIR}/consumer consumer_cpp consumer_c)
build_project(${SOURCE_DIR}/c_consumer consumer)
# The examples promise to build on their own.
build_project(${EXAMPLES_DIR} example_forward example_decode_paged example_c_forward)

if(HAS_CLI)
  run(${PREFIX}/bin/onepass info)
endif()
