# Compile options of our own targets, in one interface library.
add_library(onepass_options INTERFACE)
target_compile_options(onepass_options INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Wold-style-cast
  $<$<BOOL:${ONEPASS_WARNINGS_AS_ERRORS}>:-Werror>)
if(ONEPASS_SANITIZE)
  target_compile_options(onepass_options INTERFACE -fsanitize=${ONEPASS_SANITIZE} -fno-omit-frame-pointer -g
    $<$<CONFIG:Release>:-O1> -fno-sanitize-recover=all)
  target_link_options(onepass_options INTERFACE -fsanitize=${ONEPASS_SANITIZE})
endif()
