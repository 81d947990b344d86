# SPDX-License-Identifier: Apache-2.0
"""The Python side of rounds.hpp: each line "round" on the input is answered with one JSON line per side."""

import json
import sys


def print_sample(side, seconds, samples, **more):
    print(json.dumps({"side": side, "seconds": seconds, "samples": samples, **more}), flush=True)


def print_info(side, text):
    print(json.dumps({"side": side, "info": text}), flush=True)


def serve_rounds(take_round):
    for n, line in enumerate(sys.stdin):
        if line.strip() != "round":
            break
        take_round(n)
