# Compile options of our own targets, in one interface library.
add_library(onepass_options INTERFACE)
target_compile_options(onepass_options INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion
  $<$<COMPILE_LANGUAGE:CXX>:-Wold-style-cast>
  # g++ 12 at -O3 reports overlapping copies inside std::string's operator+ that cannot happen (GCC bug 105651).
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict>
  $<$<BOOL:${ONEPASS_WARNINGS_AS_ERRORS}>:-Werror>)

# Build type of the sanitizer presets: fast enough to run every test, line numbers in reports, assertions on.
set(CMAKE_C_FLAGS_SANITIZE "-O1 -g1")
set(CMAKE_CXX_FLAGS_SANITIZE "-O1 -g1")
if(ONEPASS_SANITIZE)
  target_compile_options(onepass_options INTERFACE
    -DONEPASS_SANITIZED -fsanitize=${ONEPASS_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(onepass_options INTERFACE -fsanitize=${ONEPASS_SANITIZE})
endif()

# For test programs, what verifies results, and readers of files: without three checks of every access, which take half
# of the time to compile. AddressSanitizer reports where null is used, the library itself keeps all checks, and the
# fuzzers hold the readers to all. Named after onepass_options.
add_library(onepass_fewer_checks INTERFACE)
if(ONEPASS_SANITIZE MATCHES "undefined")
  target_compile_options(onepass_fewer_checks INTERFACE -fno-sanitize=null,alignment,vptr)
endif()

# With precompiled headers and optimisation, g++ 12 takes the buffer inside a std::string for all of its memory (compare
# GCC bug 105651). For command line and tests; the library keeps these warnings.
set(ONEPASS_FALSE_WARNINGS $<$<CXX_COMPILER_ID:GNU>:-Wno-array-bounds> $<$<CXX_COMPILER_ID:GNU>:-Wno-stringop-overflow>)

# The standard and third-party headers that most files of a target include, read once. They stand in for no #include:
# the tsan preset compiles the library without them. A file with other options than its target's takes no part; targets
# of the same options share what was read (REUSE_FROM).
function(onepass_precompile_headers target)
  target_precompile_headers(${target} PRIVATE
    <algorithm> <array> <cstdint> <limits> <optional> <span> <string> <string_view> <vector> <fmt/format.h> ${ARGN})
endfunction()
