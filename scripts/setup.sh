#!/usr/bin/env bash
# Makes sure that what a task needs is on this machine (Debian 12 or later, Ubuntu 24.04 or later).
#
#   scripts/setup.sh TASK...      TASK: build, test, python, bundle, bench, lint, sanitize, fuzz
#
# As root, missing packages are installed. As anybody else, the one line that installs them is printed. For test and
# bundle the run-time compiler of the kernels comes into .venv; where it cannot be had, the tests that need it are
# skipped, and the bundle cannot be made.
# Exit status: 0 everything is there, 3 the environment lacks something.
set -euo pipefail

packages_for() {
  case "$1" in
    build) echo g++ cmake ninja-build libhwy-dev libfmt-dev libcli11-dev nlohmann-json3-dev libxxhash-dev \
      libzstd-dev ;;
    test) echo "$(packages_for build)" libgtest-dev libgmock-dev pkg-config python3 python3-venv ;;
    python) echo "$(packages_for build)" binutils python3-dev python3-venv ;;
    bundle | bench) echo "$(packages_for build)" python3-venv ;;
    lint) echo "$(packages_for test)" clang-format-14 clang-tidy-14 libomp-14-dev codespell ;;
    sanitize | fuzz) echo "$(packages_for test)" clang-14 libclang-rt-14-dev libomp-14-dev ;;
    *)
      echo "setup: unknown task '$1'; know build, test, python, bundle, bench, lint, sanitize, fuzz" >&2
      exit 2
      ;;
  esac
}

missing_packages() {
  local package
  for package in "$@"; do
    if [[ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" != installed ]]; then
      echo "$package"
    fi
  done
}

install_packages() {
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq && apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# NVRTC, by its pinned version, in .venv: no toolkit, nothing outside this folder.
install_nvrtc() {
  local folder
  folder=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
  local stamp=$folder/.venv/nvrtc-requirements.txt
  cmp -s "$folder/scripts/nvrtc-requirements.txt" "$stamp" && return
  echo "setup: installing the run-time compiler of the kernels into .venv"
  test -x "$folder/.venv/bin/pip" || python3 -m venv "$folder/.venv" || return
  "$folder/.venv/bin/pip" install --quiet --disable-pip-version-check \
    --requirement "$folder/scripts/nvrtc-requirements.txt" || return
  cp "$folder/scripts/nvrtc-requirements.txt" "$stamp"
}

# The compiler for those tasks that use it.
prepare_nvrtc() {
  if [[ " $* " == *" bundle "* ]]; then
    install_nvrtc || {
      echo "setup: the package of scripts/nvrtc-requirements.txt could not be installed (pip's messages are above)." >&2
      exit 3
    }
  elif [[ " $* " == *" test "* ]]; then
    install_nvrtc || echo "setup: without it, the tests that compile kernels are skipped." >&2
  fi
}

check_cmake() {
  local version
  version=$(cmake --version | sed -n '1s/^cmake version //p')
  if [[ "$(printf '%s\n' 3.25 "$version" | sort -V | head -n 1)" != 3.25 ]]; then
    echo "setup: cmake is version $version ($(command -v cmake))." >&2
    echo "  Allowed: 3.25 or later." >&2
    echo "  Fix: use Debian 12 or Ubuntu 24.04 or later, or put a newer cmake first in PATH." >&2
    exit 3
  fi
}

if [[ $# -eq 0 ]]; then
  sed -n '2,/^set /s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi

wanted=()
for task in "$@"; do
  list=$(packages_for "$task")
  read -r -a packages <<<"$list"
  wanted+=("${packages[@]}")
done
mapfile -t wanted < <(printf '%s\n' "${wanted[@]}" | sort -u)

if ! command -v dpkg-query >/dev/null; then
  echo "setup: not a Debian or Ubuntu system, so nothing was checked. Needed, by Debian's names: ${wanted[*]}" >&2
  prepare_nvrtc "$@"
  exit 0
fi

mapfile -t missing < <(missing_packages "${wanted[@]}")
if [[ ${#missing[@]} -gt 0 ]]; then
  if [[ $EUID -ne 0 ]]; then
    echo "setup: ${#missing[@]} packages are missing, and only root may install them. Run this, then try again:" >&2
    echo "  sudo apt-get install --no-install-recommends ${missing[*]}" >&2
    exit 3
  fi
  echo "setup: installing ${missing[*]}"
  # Mirrors fail now and then: one second try.
  install_packages "${missing[@]}" || { sleep 5 && install_packages "${missing[@]}"; } || {
    echo "setup: apt-get could not install ${missing[*]} (its messages are above)." >&2
    exit 3
  }
fi
check_cmake
prepare_nvrtc "$@"
