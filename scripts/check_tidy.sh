#!/usr/bin/env bash
# clang-tidy (.clang-tidy) over the host code that decides and parses; the SIMD kernels, whose text is built
# once per instruction set, are left to the compilers' warnings and the sanitizers.
#
#   scripts/check_tidy.sh [FILE...]
set -euo pipefail
cd "$(dirname "$0")/.."

if [[ $# -gt 0 ]]; then
  files=("$@")
else
  mapfile -t files < <(git ls-files 'src/*.cpp' 'cli/*.cpp' | grep -v '^src/backends/cpu/simd/')
fi
cmake --preset tidy >/dev/null
printf '%s\n' "${files[@]}" | xargs -P "$(nproc)" -n 4 clang-tidy-14 -p build/tidy --quiet
