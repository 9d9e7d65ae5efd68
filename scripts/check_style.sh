#!/usr/bin/env bash
# Format, whitespace and spelling of the files that git tracks.
#
#   scripts/check_style.sh [--fix] [FILE...]    all tracked files when none is named
#
# --fix rewrites what a program can rewrite (format); the rest is for the author.
# Exit status: 0 clean, 1 something was found (each with its place).
set -uo pipefail
cd "$(dirname "$0")/.."

fix=false
if [[ "${1:-}" == --fix ]]; then
  fix=true
  shift
fi
if [[ $# -gt 0 ]]; then files=("$@"); else mapfile -t files < <(git -c safe.directory="$PWD" ls-files); fi

sources=() texts=()
for file in "${files[@]}"; do
  [[ -f "$file" && ! -L "$file" ]] || continue
  case "$file" in
    *.cpp | *.h | *.c) sources+=("$file") texts+=("$file") ;;
    LICENSE | tests/fuzz/corpus/* | *.json | *.svg | *.safetensors | *.npy) ;;
    *) grep -Iq . "$file" && texts+=("$file") ;;
  esac
done

failed=0
if [[ ${#sources[@]} -gt 0 ]]; then
  if $fix; then
    clang-format-14 -i "${sources[@]}"
  else
    clang-format-14 --dry-run -Werror "${sources[@]}" || failed=1
  fi
  # clang-format leaves comments alone, so their width is checked here.
  awk 'length($0) > 110 { print FILENAME ":" FNR ": wider than 110 columns"; bad = 1 } END { exit bad }' \
    "${sources[@]}" || failed=1
fi
if [[ ${#texts[@]} -gt 0 ]]; then
  if grep -nE '[[:blank:]]+$' "${texts[@]}" /dev/null; then
    echo "check_style: blanks at the end of the lines above" >&2
    failed=1
  fi
  for file in "${texts[@]}"; do
    if [[ -n "$(tail -c 1 "$file")" ]]; then
      echo "$file: no newline at the end" >&2
      failed=1
    fi
  done
  codespell --quiet-level=2 --ignore-words-list=kinf,dout "${texts[@]}" || failed=1
fi
exit $failed
