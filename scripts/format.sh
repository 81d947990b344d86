#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks that every C++ and CUDA source is formatted as .clang-format says; --fix formats them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

clang_format=${CLANG_FORMAT:-clang-format}
command -v "$clang_format" >/dev/null ||
  { echo "format: no clang-format here: 'apt-get install clang-format' brings it" >&2; exit 1; }
case ${1:-} in
  --fix) mode=(-i) ;;
  '') mode=(--dry-run --Werror) ;;
  *) echo "usage: scripts/format.sh [--fix]" >&2; exit 2 ;;
esac
folders=()
for folder in include src tests benchmarks examples cmake; do [ -d "$folder" ] && folders+=("$folder"); done
find "${folders[@]}" \( -name '*.hpp' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) -print0 |
  xargs -0 -r -n 16 -P 2 "$clang_format" "${mode[@]}"
echo "format: ok"
