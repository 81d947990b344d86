#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Sets up, builds and runs the audit: what each tactic is worth on this machine. All arguments go to the audit
# (--help, --data, --epochs, --out); without any it audits the CNN on Fashion-MNIST.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scripts/setup.sh
. scripts/build.sh
build ci saturate-audit
exec build/dev/benchmarks/saturate-audit "$@"
