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
    -fsanitize=${ONEPASS_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(onepass_options INTERFACE -fsanitize=${ONEPASS_SANITIZE})
endif()
