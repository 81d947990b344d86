# SPDX-License-Identifier: Apache-2.0
# Makes mlp.pt.trace.json.gz, a profile by Python's torch of three training steps of a small model, and mlp.counts.json,
# what is in it as Python's json sees it: python tests/data/traces/make.py (needs torch; run where the files lie).
import gzip
import json
import pathlib

import torch
from torch.profiler import ProfilerActivity, profile, schedule

here = pathlib.Path(__file__).parent
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def step():
    loss = torch.nn.functional.cross_entropy(model(torch.randn(8, 16)), torch.randint(4, (8,)))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


raw = here / "mlp.json"
with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=0, warmup=1, active=3), record_shapes=True,
             with_stack=True, profile_memory=True, with_flops=True,
             on_trace_ready=lambda p: p.export_chrome_trace(str(raw))) as profiler:
    for _ in range(4):
        step()
        profiler.step()
text = raw.read_bytes()
raw.unlink()
with gzip.GzipFile(here / "mlp.pt.trace.json.gz", "wb", mtime=0) as file:
    file.write(text)

events = json.loads(text)["traceEvents"]
spans = [event for event in events if event.get("ph") == "X"]
by_category = {}
for event in spans:
    by_category[event["cat"]] = by_category.get(event["cat"], 0) + 1
(here / "mlp.counts.json").write_text(json.dumps({
    "spans": by_category,
    "memory": sum(event.get("name") == "[memory]" for event in events),
    "flows": sum(event.get("ph") in ("s", "f") for event in events),
    "addmm": sum(event["name"] == "aten::addmm" for event in spans),
    "addmm_shapes": sorted({json.dumps(event["args"]["Input Dims"], separators=(",", ":")) for event in spans
                            if event["name"] == "aten::addmm"}),
    "steps": [event["name"] for event in sorted(spans, key=lambda e: e["ts"]) if event["name"].startswith("ProfilerStep")],
}, indent=1) + "\n")
