#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Sets up, builds and runs a group of benchmarks: scripts/bench.sh foundation [--json FILE] [--only TEXT] [--quick]
# One line a number (name, measured, bar, held or short); exits 1 when a row falls short or did not run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=python3
[ -x .venv/bin/python ] && python=.venv/bin/python
case ${1:-} in
  '' | -h | --help | --list) exec "$python" benchmarks/bench.py "$@" ;;
esac
scripts/setup.sh
python=python3
[ -x .venv/bin/python ] && python=.venv/bin/python

# The rivals of the data group, in an environment of their own that sees .venv, and the images that all sides read.
prepare_data() {
  local requirements=benchmarks/peers/requirements-data.txt peers=.venv-peers purelib
  purelib='import sysconfig; print(sysconfig.get_path("purelib"))'
  if ! cmp -s "$requirements" "$peers/requirements.installed"; then
    printf 'bench: into %s, from PyPI (40 MB): %s\n' "$peers" \
      "$(grep -v '^#' "$requirements" | tr '\n' ' ')" >&2
    "$python" -m venv "$peers" &&
      "$python" -c "$purelib" >"$("$peers/bin/python" -c "$purelib")/saturate.pth" &&
      "$peers/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps -r "$requirements" &&
      cp "$requirements" "$peers/requirements.installed" || return
  fi
  "$peers/bin/python" benchmarks/make_images.py .cache/bench-data
}
[ "$1" != data ] || prepare_data || printf 'bench: not everything that the data group needs is there\n' >&2

. scripts/build.sh
# A program that does not build is a row that did not run, which the driver says.
build ci saturate-benchmarks || printf 'bench: not everything was built\n' >&2
exec "$python" benchmarks/bench.py --build build/dev "$@"
