#!/usr/bin/env bash
# clang-tidy (.clang-tidy) over the host code that decides and parses; the SIMD kernels, whose text is built
# once per instruction set, are left to the compilers' warnings and the sanitizers.
#
#   scripts/check_tidy.sh [FILE...]    all when none is named
#
# All files go through in batches, which share the time for their headers; named ones each alone, which also shows an
# #include that is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

cmake --preset tidy >/dev/null

check_batch() {
  local found
  found=$(clang-tidy-14 -p build/tidy/batches --quiet "$1" 2>&1) && return
  if grep -q clang-diagnostic-error <<<"$found"; then  # perhaps two files do not go together: only alone it counts
    sed -n 's/^#include "\(.*\)"$/\1/p' "$1" | xargs clang-tidy-14 -p build/tidy --quiet
  else
    echo "$found"
    return 1
  fi
}
export -f check_batch

if [[ $# -gt 0 ]]; then
  printf '%s\n' "$@" | xargs -P "$(nproc)" -n 1 clang-tidy-14 -p build/tidy --quiet
else
  git ls-files 'src/*.cpp' 'cli/*.cpp' | grep -v '^src/backends/cpu/simd/' |
    xargs python3 scripts/tidy_batches.py build/tidy |
    xargs -P "$(nproc)" -I{} bash -c 'check_batch {}'
fi
