# SPDX-License-Identifier: Apache-2.0
"""Runs a group of benchmarks and says, one line a number, whether each bar is held.

    bench.py GROUP [--build FOLDER] [--json FILE] [--only TEXT] [--rounds N] [--quick] [--list]

The sides of a comparison are processes that answer "round" (rounds.hpp, peers/rounds.py); their rounds are interleaved,
so that a busy moment of the machine meets all of them. The first round warms up and does not count. Exits 1 when a row
falls short or did not run. Needs python3 alone; the rows whose rival is Python need torch in the same python3, or what
bench.sh sets up for them in .venv-peers."""

import argparse
import collections
import contextlib
import dataclasses
import datetime
import fnmatch
import json
import math
import os
import pathlib
import platform
import random
import re
import resource
import select
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
PEERS = ROOT / "benchmarks" / "peers"
KEPT_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=8589934592"}
ROUND_SECONDS = 600  # a round that takes longer hangs


SKIPPED = 77  # exit status of a side that this machine does not allow


class NotRun(Exception):
    """A side that is missing or failed, with the reason."""


class Skipped(NotRun):
    """A side that cannot be here: neither held nor short."""


# --- what is measured -------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Process:
    """A long-lived program that answers a round with one line for each of its `sides`. `command` may hold {build},
    {python}, {benchmarks}, {peers}, {peers_python} (of peers/requirements-*.txt) and {images} (of make_images.py)."""

    command: str
    sides: int = 1
    environment: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Compile:
    """A side that is compiled, not run: CPU seconds of -fsyntax-only of one include."""

    side: str
    include: str


@dataclasses.dataclass
class Row:
    """A bar. `ours` and `theirs` are sides; of several, the best one (by median) stands for them; "every/*" is all
    sides with such a name. Without a bar: a note, neither held nor short.

    kind: rate    median samples/s of ours over theirs; at least `bar`
          cost    median seconds of ours over theirs; at most `bar`
          halves  median ratio of seconds, round by round, to the fastest of theirs, which one half of the rounds names
                  and the other half times (both ways; geometric mean); at most `bar`. For many rivals that differ by
                  less than the noise: the least of many medians is too low
          paired  upper 95 % bound of the median ratio of seconds, round by round; at most `bar`
          size    median `count` field of ours over theirs; at most `bar`
          equal   both sides' `count` field, in every round
          count   the `count` field of ours, in every round; at most `bar`
          fastest as rate, but of the lower quartile of seconds: what disturbs a link or a core only adds time, and
                  the one fastest round is luck
          least   `count` field of ours in the last round, which sums up those before; at least `bar`"""

    name: str
    kind: str
    ours: tuple
    theirs: tuple
    bar: float | None


@dataclasses.dataclass
class Comparison:
    sides: list
    rows: list
    rounds: int


def optimizer(arguments, environment, name, bar, rival="torch"):
    return Comparison([Process(f"{{build}}/benchmarks/bench_optimizers {arguments}", 2, environment)],
                      [Row(name, "rate", ("saturate",), (rival,), bar)], rounds=15)


def optimizers():
    """Each against its twin in torch::optim or a loop by hand, both with kept pages: few large tensors, many small."""
    bars = {"adamw": (2.3, 3), "adam": (2.3, 3), "adagrad": (1.8, 1.8), "momentum": (1.1, 1.1), "sgd": (0.95, 0.95),
            "rmsprop": (0.95, 0.95), "lion": (1, 1), "lamb": (1, 1), "lars": (1, 1)}
    rows = []
    for name, (large, small) in bars.items():
        rival = "hand" if name in ("lion", "lamb", "lars") else "torch"
        rows.append(optimizer(f"{name} 20 1000000", KEPT_PAGES, f"{name} / {rival}, 20 x 1 M", large, rival))
        rows.append(optimizer(f"{name} 2000 1000", KEPT_PAGES, f"{name} / {rival}, 2000 x 1000", small, rival))
    rows.append(optimizer("adamw-copy 20 1000000", KEPT_PAGES, "adamw / copy of its bytes, 20 x 1 M", 0.9, "copy"))
    return rows


WORKERS = sorted({0, 1, 2, len(os.sched_getaffinity(0))})


def sides_of(name, workers=WORKERS):
    return tuple(f"{name}_{count}" for count in workers)


def images(size, webdataset_bar):
    """Decode, random crop, flip and normalise, each rival from its own files of the same JPEGs."""
    numbers = ",".join(str(count) for count in WORKERS)
    ours, what = sides_of("saturate", WORKERS[1:]), f"JPEGs {size} x {size}"
    peers = [Process(f"{{peers_python}} {{peers}}/{peer}_loader.py {{images}} {size} {numbers}", len(WORKERS), KEPT_PAGES)
             for peer in ("webdataset", "mosaic")]
    return Comparison(
        [Process(f"{{build}}/benchmarks/bench_data images {{images}} {size} {numbers[2:]}", len(ours) + 1, KEPT_PAGES),
         *peers],
        [Row(f"{what} / webdataset", "rate", ours, sides_of("webdataset"), webdataset_bar),
         Row(f"{what} / mosaicml-streaming", "rate", ours, sides_of("mosaic"), 2),
         Row(f"{what} / libjpeg-turbo alone, all cores", "rate", ours, ("limit",), 0.85)], rounds=5)


def data(arguments, sides, row, rounds):
    return Comparison([Process(f"{{build}}/benchmarks/bench_data {arguments}", sides, KEPT_PAGES)], [row], rounds)


def recompute(what, sides, rows, rounds, peers=()):
    return Comparison([Process(f"{{build}}/benchmarks/bench_recompute {what}", sides, KEPT_PAGES), *peers], rows, rounds)


BUDGETS = (0.05, 0.25, 0.5, 0.75, 0.95)  # of what lies between the peaks of all() and plain; recompute.cpp

LINK = "{python} {benchmarks}/rate_limited_link.py"


def over_link(rate, rounds, *rows):
    """Two ranks with such a link between them; ours and Python's take turns, each on a link of its own."""
    return Comparison([Process(f"{LINK} {rate} -- {{build}}/benchmarks/bench_distributed link {rate}", 6),
                       Process(f"{LINK} {rate} -- {{python}} {{peers}}/distributed.py", 3)],
                      [Row(f"{rate}: {name}", kind, (ours,), (theirs,), bar) for name, kind, ours, theirs, bar in rows],
                      rounds)


def compressed(against_none):
    for dtype in ("fp16", "bf16"):
        yield f"{dtype} / no compression", "fastest", dtype, "overlapped", against_none
        yield f"{dtype} / Python's {dtype}_compress_hook", "fastest", dtype, f"python_{dtype}", 1.0


def overlap(against_flat):
    return (("overlapped / one all-reduce after backward", "fastest", "overlapped", "flat", against_flat),
            ("overlapped / Python DistributedDataParallel", "fastest", "overlapped", "python", 1.0),
            ("hidden communication, of what can be", "least", "hidden", "hidden", 0.8))


CNN = ("{build}/benchmarks/throughput --model cnn --device cpu --policies keep_pages,channels_last,prefetch=1 "
       "--rounds-from-stdin --batches 120")
CNN_IN_PYTHON = "{python} {peers}/train_cnn.py --batches 120"


GROUPS = {
    "foundation": [
        optimizer("adamw 20 1000000", {}, "fused AdamW / torch::optim::AdamW, 20 x 1 M", 6),
        optimizer("adamw 20 1000000", KEPT_PAGES, "fused AdamW / torch::optim::AdamW, kept pages", 2.3),
        optimizer("adamw 2000 1000", {}, "fused AdamW / torch::optim::AdamW, 2000 x 1000", 3),
        Comparison(
            [Process("{build}/benchmarks/bench_loader", 4), Process("{python} {peers}/dataloader.py", 4)],
            [Row("loader / torch::data", "rate", ("saturate_0", "saturate_2"), ("torch_0", "torch_2"), 4),
             Row("loader / Python DataLoader", "rate", ("saturate_0", "saturate_2"), ("default_0", "default_2"), 15),
             Row("loader / Python DataLoader, batched", "rate", ("saturate_0", "saturate_2"),
                 ("batched_0", "batched_2"), 2)],
            rounds=7),
        Comparison(
            [Process("{build}/benchmarks/bench_step", 3)],
            [Row("Trainer step / by hand: operators", "equal", ("trainer",), ("hand",), 0),
             Row("Trainer step / by hand: time, upper 95 % bound", "paired", ("trainer",), ("hand",), 1.03)],
            rounds=41),
        Comparison(
            [Process(CNN), Process(f"{CNN_IN_PYTHON} --side eager"),
             Process(f"{CNN_IN_PYTHON} --side tuned --channels-last", 1, KEPT_PAGES)],
            [Row("CNN training / Python eager", "rate", ("saturate",), ("eager",), 1.25),
             Row("CNN training / Python channels_last, kept pages", "rate", ("saturate",), ("tuned",), 1.0)],
            rounds=9),
        Comparison(
            [Compile("saturate.hpp", "saturate/saturate.hpp"), Compile("torch.h", "torch/torch.h")],
            [Row("compile time, saturate.hpp / torch.h", "cost", ("saturate.hpp",), ("torch.h",), 1.15)], rounds=3),
    ],
    "numerics": [
        *optimizers(),
        Comparison(
            [Process("{build}/benchmarks/bench_numerics clip_step_ema", 1, KEPT_PAGES),
             Process("{python} {peers}/clip_step_ema.py", 1, KEPT_PAGES)],
            [Row("clip + AdamW + EMA / Python, 2000 x 1000", "rate", ("saturate",), ("python",), 1.2)], rounds=15),
        Comparison([Process("{build}/benchmarks/bench_numerics host_reads")],
                   [Row("host reads of 100 windows with everything on", "count", ("reads",), ("reads",), 0)], rounds=3),
        Comparison([Process("{build}/benchmarks/bench_numerics scaler", 2, KEPT_PAGES)],
                   [Row("scaler of a step / a pass over the gradients", "cost", ("scaler",), ("pass",), 1.05)],
                   rounds=31),
    ],
    "data": [
        images(64, 4),
        images(256, 1.5),
        data("gather", 4, Row("rows in memory / one copy of them", "rate", sides_of("saturate", (0, 1, 2)), ("copy",), 0.6), 9),
        data("tokens {images}", 4,
             Row("token sequences / a copy of them", "rate", sides_of("saturate", (0, 1, 2)), ("copy",), 0.6), 9),
        Comparison(
            [Process("{build}/benchmarks/bench_data resume", 2)],
            [Row("first batch: resumed at batch 10,000 / a new epoch", "cost", ("resumed",), ("start",), 1.1),
             Row("samples before batch 10,000 that are read again", "count", ("resumed",), ("resumed",), 0)], rounds=15),
        Comparison(
            [Process("{build}/benchmarks/bench_data memory 8"), Process("{build}/benchmarks/bench_data memory 1")],
            [Row("memory, 8 workers / 1 worker, 1 M samples", "size", ("workers_8",), ("workers_1",), 1.05)], rounds=3),
    ],
    "observe": [
        Comparison(
            [Process("{build}/benchmarks/bench_profiling_cost", 3)],
            [Row("step between profiles / without: operators", "equal", ("between",), ("plain",), 0),
             Row("step between profiles / without: time, upper 95 % bound", "paired", ("between",), ("plain",), 1.03),
             Row("recorded step / without", "cost", ("recorded",), ("plain",), None)],
            rounds=41),
    ],
    "recompute": [
        recompute(
            "step", 2,
            [Row("activation peak: all() / plain", "size", ("all",), ("plain",), 0.15),
             Row("step time: all() / plain", "cost", ("all",), ("plain",), 1.42),
             Row("step time: all() / Python's checkpoint", "cost", ("all",), ("python",), 1.05),
             Row("activation peak: all() / Python's checkpoint", "size", ("all",), ("python",), 1.05),
             Row("step time: all() / Python, preserve_rng_state=False", "cost", ("all",), ("python_no_rng",), None),
             Row("step time: plain / Python's plain", "cost", ("plain",), ("python_plain",), None),
             Row("activation peak: plain / Python's plain", "size", ("plain",), ("python_plain",), None)],
            rounds=9, peers=[Process("{python} {peers}/recompute.py", 3, KEPT_PAGES)]),
        recompute(
            "budget", len(BUDGETS) * 9 + 2,
            [Row("budget: measured peak / budget, worst of 5", "count", ("budget_peaks",), ("budget_peaks",), 1),
             Row("budget: single parts that could be kept, of 5", "count", ("budget_spare",), ("budget_spare",), 0),
             *(Row(f"budget at {share:.0%}: step time / best every(n)", "halves", (f"budget{i}",), (f"every{i}/*",), 1.03)
               for i, share in enumerate(BUDGETS))], rounds=24),
        Comparison([Process("{build}/benchmarks/bench_fits", 11, KEPT_PAGES)],
                   [Row("fits: worst error, 5 batch sizes, 2 models", "count", ("fits",), ("fits",), 0.05)], rounds=1),
        recompute(
            "allocations", 3,
            [Row("allocations of a step: Trainer / by hand", "equal", ("trainer",), ("hand",), 0),
             Row("largest block that a policy adds, bytes", "count", ("policies",), ("policies",), 8 * 54)],  # parameters
            rounds=2),
    ],
    "distributed": [
        over_link("2gbit", 21, *overlap(1.3)),
        over_link("1gbit", 21, *overlap(1.3), *compressed(1.4)),
        over_link("500mbit", 15, *overlap(None), *compressed(1.6)),
        Comparison(
            [Process("{build}/benchmarks/bench_distributed alone", 2)],
            [Row("Ddp of one process / no policy: operators", "equal", ("ddp",), ("without",), 0),
             Row("Ddp of one process / no policy: time, upper 95 % bound", "paired", ("ddp",), ("without",), 1.03)],
            rounds=41),
        Comparison(
            [Process("{build}/benchmarks/bench_distributed memory", 2)],
            [Row("optimizer state of a rank: sharded over 4 / whole", "size", ("sharded",), ("whole",), 0.30)],
            rounds=1),
        Comparison(
            [Process("{build}/benchmarks/bench_distributed notice", 2)],
            [Row("seconds to notice a killed peer, timeout 3 s", "count", ("killed",), ("killed",), 0.2),
             Row("seconds to notice a stopped peer, timeout 3 s", "count", ("stopped",), ("stopped",), 3.5)], rounds=3),
    ],
}


# --- running ----------------------------------------------------------------------------------------------------------


class RunningProcess:
    def __init__(self, spec, places):
        self.command = spec.command.format(**places).split()
        program = self.command[0]
        if not os.access(program, os.X_OK):
            raise NotRun(f"{os.path.relpath(program, ROOT)} is not there")
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
                                        env={**os.environ, **spec.environment})
        self.sides = spec.sides
        self.settings = "".join(f", {name}={value}" for name, value in spec.environment.items())
        self.buffer = b""

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.errors):
            with contextlib.suppress(BrokenPipeError):
                stream.close()

    def failure(self, what):
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=1)  # ended by itself, and tells why
        self.process.kill()
        self.process.wait()
        self.errors.seek(0)
        last = [line for line in self.errors.read().splitlines() if line.strip()][-1:]
        if self.process.returncode == SKIPPED:
            return Skipped(last[0] if last else what)
        return NotRun(f"{' '.join(self.command[:2])}: {what}{': ' + last[0] if last else ''}")

    def lines(self, seconds):
        """Answers as they arrive; ends after `seconds` of silence."""
        while select.select([self.process.stdout], [], [], seconds)[0]:
            chunk = os.read(self.process.stdout.fileno(), 65536)
            if not chunk:
                raise self.failure("ended early")
            *whole, self.buffer = (self.buffer + chunk).split(b"\n")
            for line in whole:
                with contextlib.suppress(json.JSONDecodeError):  # what a library prints in between
                    yield json.loads(line)

    def round(self):
        try:
            self.process.stdin.write(b"round\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise self.failure("ended early") from None
        left = self.sides
        for answer in self.lines(ROUND_SECONDS):
            answer.setdefault("side", "saturate")
            if "info" in answer:
                answer["info"] += self.settings
            left -= "seconds" in answer
            yield answer
            if left == 0:
                return
        raise self.failure(f"no answer within {ROUND_SECONDS} s")

    def close(self):
        """Lets it check its results and end; its verdict counts."""
        self.process.stdin.close()
        try:
            if self.process.wait(timeout=60) != 0:
                raise self.failure(f"exit status {self.process.returncode}")
        except subprocess.TimeoutExpired:
            raise self.failure("does not end") from None


class RunningCompile:
    def __init__(self, spec, places):
        flags = pathlib.Path(places["build"], "tests", "flags.txt")
        if not flags.exists():
            raise NotRun(f"{os.path.relpath(flags, ROOT)} is not there")
        if not (ROOT / "include" / spec.include).exists() and spec.include.startswith("saturate/"):
            raise NotRun(f"include/{spec.include} is not there")
        self.side = spec.side
        self.compiler = os.environ.get("CXX", "g++")
        self.flags = [flag for flag in flags.read_text().split("\n") if flag]
        self.include = spec.include
        self.told = False

    def round(self):
        if not self.told:
            self.told = True
            version = subprocess.run([self.compiler, "--version"], capture_output=True, text=True).stdout.split("\n")[0]
            yield {"side": self.side, "info": f"{version}, -fsyntax-only, CPU seconds"}
        with tempfile.NamedTemporaryFile("w", suffix=".cpp") as source:
            source.write(f"#include <{self.include}>\n")
            source.flush()
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            run = subprocess.run([self.compiler, *self.flags, "-fsyntax-only", source.name], capture_output=True, text=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if run.returncode != 0:
            first = next((line for line in run.stderr.splitlines() if "error:" in line), "")
            raise NotRun(f"{self.include} does not compile: {first}")
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        yield {"side": self.side, "seconds": seconds, "samples": 1}

    def close(self):
        pass

    kill = close


def start(spec, places):
    return (RunningCompile if isinstance(spec, Compile) else RunningProcess)(spec, places)


def run(comparison, places, rounds):
    """({side: [answer of each round]}, {side: info}, [problem]). The order of the processes turns round by round. One
    that fails leaves with its samples; the others go on."""
    samples, infos, problems = collections.defaultdict(list), {}, []
    running, sides = [], collections.defaultdict(set)

    def leave(one, reason):
        problems.append(reason)
        running.remove(one)
        for side in sides[one]:
            samples.pop(side, None)

    def take_round(one, counts):
        for answer in one.round():
            sides[one].add(answer["side"])
            if "info" in answer:
                infos[answer["side"]] = answer["info"]
            elif "seconds" in answer and counts:
                samples[answer["side"]].append(answer)

    for spec in comparison.sides:
        try:
            running.append(start(spec, places))
        except NotRun as reason:
            problems.append(reason)
    everything = list(running)
    try:
        for n in range(rounds + 1):
            for one in running[:] if n % 2 == 0 else running[::-1]:
                try:
                    take_round(one, counts=n > 0)
                except NotRun as reason:
                    leave(one, reason)
        for one in running[:]:
            try:
                one.close()
            except NotRun as reason:
                leave(one, reason)
    finally:
        for one in everything:
            one.kill()
    return samples, infos, problems


# --- judging ----------------------------------------------------------------------------------------------------------


def seconds_per_sample(answers):
    return statistics.median(answer["seconds"] / answer["samples"] for answer in answers)


def lower_quartile(answers):
    seconds = [answer["seconds"] / answer["samples"] for answer in answers]
    return statistics.quantiles(seconds, method="inclusive")[0] if len(seconds) > 1 else seconds[0]


def best(sides, samples):
    sides = [name for side in sides for name in (fnmatch.filter(samples, side) if "*" in side else [side]) or [side]]
    missing = [side for side in sides if not samples.get(side)]
    if missing:
        raise NotRun(f"no samples of {', '.join(missing)}")
    return min(sides, key=lambda side: seconds_per_sample(samples[side]))


def paired_ratio(mine, other):
    return statistics.median(a["seconds"] / b["seconds"] for a, b in zip(mine, other))


def halves(ours, theirs, samples):
    """(ratio, the rivals that were named)."""
    rivals = [name for side in theirs for name in fnmatch.filter(samples, side)]
    if not rivals:
        raise NotRun(f"no samples of {', '.join(theirs)}")
    if len(samples[ours]) < 2:
        raise NotRun("takes two rounds at least")
    product, named = 1.0, []
    for half in (0, 1):
        fastest = max(rivals, key=lambda side: paired_ratio(samples[ours][half::2], samples[side][half::2]))
        product *= paired_ratio(samples[ours][1 - half::2], samples[fastest][1 - half::2])
        named.append(fastest)
    return math.sqrt(product), named


def upper_bound(ratios, share=0.95, draws=4000):
    """Bootstrap bound of the median; seeded, so that the raw samples give the same one again."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(draws))
    return medians[int(share * draws)]


def judge(row, samples):
    """(measured as text, held or None for a note, ours, theirs)."""
    if row.bar is None:
        measured, _, *pair = judge(dataclasses.replace(row, bar=0), samples)
        return measured, None, *pair
    ours, theirs = best(row.ours, samples), best(row.theirs, samples)
    if row.kind == "halves":
        value, named = halves(ours, row.theirs, samples)
        return f"{value:.3f}", value <= row.bar, ours, *dict.fromkeys(named)
    if row.kind == "equal":
        counts = {side: sorted({answer.get("count") for answer in samples[side]}, key=str) for side in (ours, theirs)}
        held = len(counts[ours]) == 1 and counts[ours] == counts[theirs] and None not in counts[ours]
        texts = [",".join(str(count) for count in counts[side]) for side in (ours, theirs)]
        return texts[0] if held else " / ".join(texts), held, ours, theirs
    if row.kind == "count":
        most = max(answer["count"] for answer in samples[ours])
        return str(most) if isinstance(most, int) else f"{most:.3f}", most <= row.bar, ours, theirs
    if row.kind == "least":
        last = samples[ours][-1]["count"]
        return f"{last:.3f}", last >= row.bar, ours, theirs
    if row.kind == "fastest":
        ratio = lower_quartile(samples[theirs]) / lower_quartile(samples[ours])
        return f"{ratio:.3f} x", ratio >= row.bar, ours, theirs
    if row.kind == "size":
        ratio = (statistics.median(answer["count"] for answer in samples[ours])
                 / statistics.median(answer["count"] for answer in samples[theirs]))
        return f"{ratio:.3f}", ratio <= row.bar, ours, theirs
    if row.kind == "paired":
        ratios = [mine["seconds"] / other["seconds"] for mine, other in zip(samples[ours], samples[theirs])]
        value = upper_bound(ratios)
        return f"{value:.3f}", value <= row.bar, ours, theirs
    ratio = seconds_per_sample(samples[ours]) / seconds_per_sample(samples[theirs])
    if row.kind == "cost":
        return f"{ratio:.3f}", ratio <= row.bar, ours, theirs
    return f"{1 / ratio:.2f} x", 1 / ratio >= row.bar, ours, theirs


def bar_text(row):
    if row.bar is None:
        return "note"
    bounds = {"rate": ">= {:g} x", "fastest": ">= {:g} x", "least": ">= {:g}", "equal": "equal"}
    return bounds.get(row.kind, "<= {:g}").format(row.bar)


def info_of(side, infos):
    """Sides share an info under their common prefix: saturate for saturate_0 and saturate_2."""
    found = infos.get(side) or infos.get(side.rsplit("_", 1)[0], "")
    suffix = re.search(r"_(\d+)$", side)
    return f"{found}, {suffix[1]} workers" if suffix else found


def rate_text(side, samples, kind=""):
    if kind == "size":
        return f"{statistics.median(answer['count'] for answer in samples[side]) / 1e6:.1f} MB"
    cost = (lower_quartile if kind == "fastest" else seconds_per_sample)(samples[side])
    return f"{cost:.4g} s" if cost > 1e-3 else f"{1 / cost:,.0f} /s"


def report(row, verdict, measured, details):
    print(f"{row.name:<52} {measured:>14}   {bar_text(row):>9}   {verdict}".rstrip(), flush=True)
    for line in details:
        print(f"    {line}", flush=True)


def machine():
    model = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "")
    return {"cpu": model, "cores": len(os.sched_getaffinity(0)), "system": platform.platform(),
            "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("group", nargs="?", choices=sorted(GROUPS))
    parser.add_argument("--build", default=str(ROOT / "build" / "dev"))
    parser.add_argument("--json", help="raw samples of every side and round")
    parser.add_argument("--only", default="", help="only comparisons with a row whose name holds this text")
    parser.add_argument("--rounds", type=int, help="in place of each comparison's own number")
    parser.add_argument("--quick", action="store_true", help="at most two rounds")
    parser.add_argument("--list", action="store_true", help="say what would be measured")
    options = parser.parse_args()
    if options.list or not options.group:
        for group, comparisons in GROUPS.items():
            print(group, *(f"  {row.name} ({bar_text(row)})" for one in comparisons for row in one.rows), sep="\n")
        sys.exit(0 if options.list else 2)

    places = {"build": options.build, "python": sys.executable, "benchmarks": PEERS.parent, "peers": PEERS,
              "images": ROOT / ".cache" / "bench-data",
              "peers_python": ROOT / ".venv-peers" / "bin" / "python"}
    here = machine()
    print(f"{here['cpu']}, {here['cores']} cores; {here['date']}")
    print(f"{'name':<52} {'measured':>14}   {'bar':>9}")
    raw, all_held, began = [], True, time.monotonic()
    for comparison in GROUPS[options.group]:
        if not any(options.only.lower() in row.name.lower() for row in comparison.rows):
            continue
        rounds = options.rounds or (min(2, comparison.rounds) if options.quick else comparison.rounds)
        samples, infos, problems = run(comparison, places, rounds)
        for row in comparison.rows:
            try:
                measured, held, *pair = judge(row, samples)
                verdict = {True: "held", False: "short", None: ""}[held]
                details = [f"{rate_text(side, samples, row.kind)}  {info_of(side, infos)}" for side in dict.fromkeys(pair)]
            except NotRun as reason:
                skipped = any(isinstance(problem, Skipped) for problem in problems)
                measured, verdict = "-", "skipped" if skipped else "not run"
                details = list(dict.fromkeys([str(reason), *map(str, problems)]))
            all_held = all_held and (verdict in ("held", "skipped") or row.bar is None)
            report(row, verdict, measured, details)
            raw.append({"name": row.name, "kind": row.kind, "bar": row.bar, "measured": measured, "verdict": verdict,
                        "ours": row.ours, "theirs": row.theirs, "info": infos, "samples": samples,
                        "problems": [str(problem) for problem in problems]})
    bars = [row["verdict"] for row in raw if row["bar"] is not None and row["verdict"] != "skipped"]
    print(f"{bars.count('held')} of {len(bars)} held, in {time.monotonic() - began:.0f} s")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps({"machine": here, "group": options.group, "rows": raw}, indent=1))
    sys.exit(not (all_held and raw))


if __name__ == "__main__":
    main()
