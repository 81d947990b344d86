# SPDX-License-Identifier: Apache-2.0
# Makes a large trace of a small one, for timing: python benchmarks/repeat_trace.py SMALL.json.gz LARGE.json MEGABYTES
# The events come again and again, each time later.
import gzip
import json
import sys

source, target, megabytes = sys.argv[1], sys.argv[2], int(sys.argv[3])
trace = json.loads((gzip.open(source) if source.endswith(".gz") else open(source, "rb")).read())
events = [event for event in trace.pop("traceEvents") if event.get("ph") in ("X", "i", "s", "f")]
begin = min(event["ts"] for event in events)
span = max(event["ts"] + event.get("dur", 0) for event in events) - begin + 100
with open(target, "w") as file:
    file.write(json.dumps(trace)[:-1] + ', "traceEvents": [')
    size, separator = 0, ""
    for repeat in range(10**9):
        if size > megabytes * 10**6:
            break
        for event in events:
            event = dict(event, ts=round(event["ts"] + repeat * span, 3))
            size += file.write(separator + json.dumps(event))
            separator = ",\n"
    file.write("]}\n")
