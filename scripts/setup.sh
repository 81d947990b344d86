#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Brings what saturate needs to build, test and measure: Debian packages by name, one apt source (Catch2 v3), and,
# unless CMAKE_PREFIX_PATH or Torch_DIR already leads to a LibTorch, the pinned wheel in ./.venv. Safe to run again.
# Nothing outside this folder changes but the apt packages and that apt source.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

packages=(
  g++ cmake ninja-build ccache git clang-format python3 python3-venv
  clang libclang-rt-dev  # the presets' compiler, and its sanitizers
  libspdlog-dev       # logging
  nlohmann-json3-dev  # audit.json
  rapidjson-dev       # traces, which are read as a stream
  libcli11-dev        # command lines of the programs
  libbenchmark-dev    # benchmarks
  zlib1g-dev          # gzip idx files
  libarchive-dev      # tar shards
  libturbojpeg0-dev libjpeg62-turbo-dev libpng-dev  # images
  dataset-fashion-mnist
)

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }
installed() { dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'ok installed'; }

run_as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"
  elif command -v sudo >/dev/null; then sudo "$@"
  else die "'$*' needs root: run it as root, then call this script again"; fi
}

refreshed=no
refresh() {
  [ "$refreshed" = yes ] || run_as_root apt-get update -qq
  refreshed=yes
}

apt_install() {
  refresh
  run_as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

install_packages() {
  command -v apt-get >/dev/null || die "no apt-get here: install ${packages[*]} and Catch2 3 by your system's means"
  local missing=() package
  for package in "${packages[@]}"; do installed "$package" || missing+=("$package"); done
  [ ${#missing[@]} -eq 0 ] && return
  say "installing ${missing[*]}"
  apt_install "${missing[@]}"
}

# Catch2 v3 is in Debian 13 and later, and in Debian 12's backports. The mirror is the one this machine already uses.
install_catch2() {
  installed catch2 && dpkg --compare-versions "$(dpkg-query -W -f='${Version}' catch2)" ge 3 && return
  refresh
  local candidate
  candidate=$(apt-cache policy catch2 | sed -n 's/^ *Candidate: //p')
  if dpkg --compare-versions "$candidate" ge 3; then apt_install catch2; return; fi
  local mirror list=/etc/apt/sources.list.d/saturate-backports.list
  mirror=$(apt-get indextargets --format '$(SITE)' 'Codename: bookworm' 'Created-By: Packages' | head -n 1)
  [ -n "$mirror" ] || die "Catch2 3 is missing: install it (Debian 12: bookworm-backports) and call this script again"
  if ! apt-cache policy | grep -q 'a=[a-z]*-backports'; then
    say "adding bookworm-backports ($list) for Catch2 3"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror bookworm-backports main" |
      run_as_root tee "$list" >/dev/null
    refreshed=no
  fi
  refresh
  run_as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends -t bookworm-backports catch2 >/dev/null
}

# Shared libraries that LibTorch needs and nobody here has, by the package that carries each.
add_missing_cuda_libraries() {
  local missing names=() library
  missing=$(find .venv/lib/python3*/site-packages/torch/lib -name '*.so' -exec ldd {} + 2>/dev/null |
    sed -n 's/^\s*\(\S*\) => not found/\1/p' | sort -u)
  for library in $missing; do
    case $library in
      libcuda.so*) ;;  # the driver: only a machine with a GPU has it
      libcudnn*) names+=(nvidia-cudnn-cu13==9.19.0.56) ;;
      libnccl*) names+=(nvidia-nccl-cu13==2.28.9) ;;
      libcublas*) names+=(nvidia-cublas) ;;
      libcudart*) names+=(nvidia-cuda-runtime) ;;
      libcufft*) names+=(nvidia-cufft) ;;
      libcupti*) names+=(nvidia-cuda-cupti) ;;
      libcurand*) names+=(nvidia-curand) ;;
      libcusolver*) names+=(nvidia-cusolver) ;;
      libcusparse.so*) names+=(nvidia-cusparse) ;;
      libnvJitLink*) names+=(nvidia-nvjitlink) ;;
      libnvrtc*) names+=(nvidia-cuda-nvrtc) ;;
      *) say "LibTorch needs $library, which is nowhere on this machine" ;;
    esac
  done
  [ ${#names[@]} -eq 0 ] && return
  mapfile -t names < <(printf '%s\n' "${names[@]}" | sort -u)
  say "adding CUDA libraries that the toolkit here lacks: ${names[*]}"
  .venv/bin/pip install --quiet --no-cache-dir --no-deps "${names[@]}"
}

install_libtorch() {
  if [ -n "${Torch_DIR:-}" ]; then say "LibTorch: yours, from Torch_DIR"; return; fi
  if [ -n "${CMAKE_PREFIX_PATH:-}" ]; then
    local prefix
    for prefix in ${CMAKE_PREFIX_PATH//:/ }; do
      [ -e "$prefix/share/cmake/Torch/TorchConfig.cmake" ] || [ -e "$prefix/Torch/TorchConfig.cmake" ] || continue
      say "LibTorch: yours, from CMAKE_PREFIX_PATH"
      return
    done
  fi
  if ! cmp -s scripts/requirements.txt .venv/requirements.installed; then
    say "LibTorch: the pinned wheel, into .venv"
    [ -x .venv/bin/pip ] || "${PYTHON:-python3}" -m venv .venv ||
      die "python3 cannot make an environment: 'apt-get install python3-venv' brings what is missing"
    .venv/bin/pip install --quiet --disable-pip-version-check --no-cache-dir --no-deps -r scripts/requirements.txt
    add_missing_cuda_libraries
    cp scripts/requirements.txt .venv/requirements.installed
  fi
}

require_toolkit() {
  command -v nvcc >/dev/null || [ -x "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" ] ||
    die "no CUDA toolkit: the pinned LibTorch is a CUDA build and its CMake files need nvcc; 'apt-get install \
cuda-toolkit-13-0' from NVIDIA's apt source brings it (no GPU is needed), or point Torch_DIR at a CPU LibTorch"
}

install_packages
install_catch2
install_libtorch
[ -n "${Torch_DIR:-}${CMAKE_PREFIX_PATH:-}" ] || require_toolkit
say "ready"
