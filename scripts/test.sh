#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Sets up, builds and runs every test with CTest. Arguments pass through to ctest (scripts/test.sh -R loader).
#   --full   also what is labelled full: every header alone, the library by GCC without a precompiled header
#   --asan   the unit tests under AddressSanitizer and UndefinedBehaviorSanitizer
#   --tsan   the tests of the loader and of file formats under ThreadSanitizer
#   --small  with --asan: the loader's and the core's tests only
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

preset=ci targets=(all) arguments=()
for argument in "$@"; do
  case $argument in
    -h | --help) sed -n 's/^# \?//; 3,7p' "${BASH_SOURCE[0]}"; exit ;;
    --full) preset=full ;;
    --asan) preset=asan ;;
    --tsan) preset=tsan targets=(test_data test_formats) arguments+=(-R '^test_(data|formats)/') ;;
    --small) targets=(test_data test_core) arguments+=(-R '^test_(data|core)/') ;;
    *) arguments+=("$argument") ;;
  esac
done

scripts/setup.sh
# shellcheck source=scripts/build.sh
. scripts/build.sh
build "$preset" "${targets[@]}"
ctest --preset "$preset" --no-tests=error "${arguments[@]}"
