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
. scripts/build.sh
# A program that does not build is a row that did not run, which the driver says.
build ci saturate-benchmarks || printf 'bench: not everything was built\n' >&2
exec "$python" benchmarks/bench.py --build build/dev "$@"
