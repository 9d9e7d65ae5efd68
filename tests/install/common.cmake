# Steps that the scripts of this folder share. Variables come from CMakeLists.txt, by -D.
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    list(JOIN ARGN " " line)
    message(FATAL_ERROR "${line}\nended with ${status}:\n${output}")
  endif()
endfunction()

# Installs the build to PREFIX, which is new each time.
function(install_to_prefix)
  file(REMOVE_RECURSE ${WORK_DIR})
  run(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${PREFIX})
endfunction()
