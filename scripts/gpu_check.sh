#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds and runs what needs a GPU, in at most 8 minutes and without a network: the tests labelled gpu, then
# benchmarks/throughput on the device. LibTorch is that of `python3 -c 'import torch'`, else the usual places.
#
#   scripts/gpu_check.sh --pack   here: copies the Debian packages that the build needs into build/gpu-deps, so that
#                                 the folder can be carried to a machine that has a GPU but not those packages
#   scripts/gpu_check.sh          there
#
# What cannot be built for want of a package is named, and makes the script fail at its end.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

deps=build/gpu-deps
deadline=$((SECONDS + ${SATURATE_GPU_SECONDS:-480}))
failed=()
say() { printf 'gpu_check: %s\n' "$*"; }
left() { echo $((deadline - SECONDS)); }

pack() {
  local packages names=(libspdlog-dev 'libspdlog1*' libfmt-dev 'libfmt[0-9]*' nlohmann-json3-dev rapidjson-dev libcli11-dev
    libbenchmark-dev 'libbenchmark1*' zlib1g-dev zlib1g libarchive-dev 'libarchive1*' libturbojpeg0-dev libturbojpeg0
    libjpeg62-turbo-dev libjpeg62-turbo libpng-dev 'libpng16-16*' dataset-fashion-mnist)
  mapfile -t packages < <(dpkg-query -W -f='${db:Status-Abbrev} ${binary:Package}\n' "${names[@]}" 2>/dev/null |
    sed -n 's/^ii *//p')
  rm -rf "$deps"
  mkdir -p "$deps/usr"
  dpkg -L "${packages[@]}" | grep -E '^(/usr)?/(include|lib|share/(cmake|datasets))/' | sort -u | while read -r file; do
    [ -f "$file" ] || continue
    local to=$deps/usr${file#/usr}
    mkdir -p "$(dirname "$to")"
    cp -L "$file" "$to"
  done
  # What libarchive itself needs: compressors that the other machine may lack.
  local lib=$deps/usr/lib/x86_64-linux-gnu
  ldd /usr/lib/x86_64-linux-gnu/libarchive.so | sed -n 's/.* => \(\S*\) .*/\1/p' |
    grep -vE '/lib(c|m|dl|pthread|rt|gcc_s|stdc\+\+)\.so' | while read -r file; do cp -nL "$file" "$lib/"; done
  # Catch2 by its files: it may have come from a package or by hand.
  (cd /usr && find include/catch2 lib -path '*atch2*' -type f ! -path '*/share/*') | while read -r file; do
    mkdir -p "$deps/usr/$(dirname "$file")"
    cp "/usr/$file" "$deps/usr/$file"
  done
  say "$(du -sh "$deps" | cut -f1) in $deps, from: Catch2 ${packages[*]}"
}

find_torch() {
  local line
  line=$(python3 -c 'import torch
print(torch.utils.cmake_prefix_path, torch.__version__, torch.cuda.get_device_name() if torch.cuda.is_available() else "none")' \
    2>/dev/null) || { say "python3 has no torch: LibTorch from CMAKE_PREFIX_PATH, Torch_DIR or .venv"; return; }
  read -r torch_prefix torch_version gpu <<<"$line"
  say "LibTorch $torch_version of python3; GPU: $gpu"
  [ "$gpu" != none ] || say "no GPU: everything is built, tests labelled gpu cannot pass"
  prefixes=$torch_prefix
}

# Libraries that libarchive needs are found by nobody's RPATH.
carried_libraries() {
  local lib=$PWD/$deps/usr/lib/x86_64-linux-gnu
  [ -d "$lib" ] || return
  export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$lib
}

configure() {
  local options=("-DCMAKE_PREFIX_PATH=${prefixes:+$prefixes;}$PWD/$deps/usr;${CMAKE_PREFIX_PATH:-}")
  command -v clang++ >/dev/null && options+=(-DCMAKE_CXX_COMPILER=clang++)
  if ! find_header catch2/catch_test_macros.hpp; then
    say "Catch2 3 is missing here and nothing is fetched: no tests (carry build/gpu-deps, see --pack)"
    failed+=("tests: no Catch2")
    options+=(-DSATURATE_BUILD_TESTS=OFF)
  fi
  timeout "$(left)" cmake --preset gpu "${options[@]}" >build/gpu-configure.log 2>&1 && return
  tail -n 30 build/gpu-configure.log
  say "configuring failed (build/gpu-configure.log)"
  return 1
}

find_header() { [ -e "$deps/usr/include/$1" ] || [ -e "/usr/include/$1" ] || [ -e "/usr/local/include/$1" ]; }

run_tests() {
  [ -e build/gpu/tests/CTestTestfile.cmake ] || return
  say "tests labelled gpu"
  timeout "$(left)" ctest --preset gpu --no-tests=error || failed+=("tests labelled gpu")
}

run_benchmarks() {
  local program=build/gpu/benchmarks/throughput policies data=()
  [ -x "$program" ] || { failed+=("benchmarks: throughput was not built"); return; }
  [ -d /usr/share/datasets/fashion-mnist ] || data=(--data "$deps/usr/share/datasets/fashion-mnist")
  for policies in none channels_last bf16 bf16,channels_last; do
    [ "$(left)" -gt 20 ] || { failed+=("throughput $policies: no time left"); continue; }
    say "throughput: cnn, $policies"
    timeout "$(left)" "$program" --model cnn --device cuda --policies "$policies" "${data[@]}" ||
      failed+=("throughput $policies")
  done
}

case ${1:-} in
  --pack) pack; exit ;;
  '') ;;
  *) sed -n 's/^# \?//; 3,10p' "${BASH_SOURCE[0]}"; exit 2 ;;
esac

mkdir -p build
prefixes=
find_torch
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv 2>/dev/null
for header in spdlog/spdlog.h nlohmann/json.hpp rapidjson/reader.h CLI/CLI.hpp zlib.h archive.h turbojpeg.h png.h; do
  find_header "$header" || say "$header is missing here (carry build/gpu-deps, see --pack)"
done
carried_libraries
configure || exit 1
say "building"
timeout "$(left)" cmake --build build/gpu -- -k 0 2>&1 | tail -n 40 || failed+=("the build")
run_tests
run_benchmarks
if [ ${#failed[@]} -eq 0 ]; then say "all held, in $SECONDS s"; exit 0; fi
printf 'gpu_check: fell short: %s\n' "${failed[@]}"
exit 1
