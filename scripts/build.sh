# SPDX-License-Identifier: Apache-2.0
# Sourced by the other scripts, which call it in the repository's folder.

# build PRESET TARGET...: configures and builds, quietly when all is well.
build() {
  local preset=$1 log
  shift
  log=$(mktemp)
  printf 'build: preset %s\n' "$preset" >&2
  if ! cmake --preset "$preset" >"$log" 2>&1; then
    cat "$log" >&2
    rm -f "$log"
    printf 'build: configuring failed (above)\n' >&2
    return 1
  fi
  rm -f "$log"
  cmake --build --preset "$preset" --target "$@" >&2
}
