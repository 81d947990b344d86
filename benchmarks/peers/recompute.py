# SPDX-License-Identifier: Apache-2.0
"""The step of `recompute step` in Python: the same transformer with torch.utils.checkpoint around each block, AdamW
(fused=True); sides python (checkpoint as it comes), python_no_rng (preserve_rng_state=False) and python_plain.

    recompute.py [--check]

Peaks come from the profiler's memory events: the sum of the bytes of all blocks that are allocated in the step and
still alive, at its highest. Before it is believed, a program whose peak is known is measured (--check: that alone)."""

import functools
import sys
import time

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import rounds

WIDTH, DEPTH, HEADS, LENGTH, BATCH = 256, 24, 4, 256, 8


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        n, length, width = x.shape
        parts = self.qkv(self.norm1(x)).view(n, length, 3, HEADS, width // HEADS)
        q, k, v = (parts.select(2, i).transpose(1, 2) for i in range(3))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(n, length, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(256, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256)
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))

    def forward(self, ids, run):
        x = self.tokens(ids) + self.positions(torch.arange(ids.size(1)))
        for block in self.blocks:
            x = run(block, x)
        return self.head(self.norm(x)).transpose(1, 2)


RUNS = {
    "python": functools.partial(checkpoint, use_reentrant=False),
    "python_no_rng": functools.partial(checkpoint, use_reentrant=False, preserve_rng_state=False),
    "python_plain": lambda block, x: block(x),
}


def peak_bytes_of(work):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    tree, events = profiler.profiler.kineto_results.experimental_event_tree(), []
    while tree:
        event = tree.pop()
        tree.extend(event.children)
        if event.tag == torch._C._profiler._EventType.Allocation:
            events.append((event.start_time_ns, event.extra_fields.ptr, event.extra_fields.alloc_size))
    alive, now, peak = {}, 0, 0
    for _, block, size in sorted(events, key=lambda event: event[0]):
        if size > 0:
            alive[block] = size
            now += size
            peak = max(peak, now)
        else:  # of a block that is older than the step: nothing
            now -= alive.pop(block, 0)
    return peak


def check_peaks():
    """Two programs of which the highest moment is known."""
    older = [torch.empty(1 << 20)]

    def blocks():
        first, second = torch.empty(3 << 20), torch.empty(2 << 20)  # 12 + 8 MiB
        older.clear()  # was there before: neither its 4 MiB nor their end count
        del first
        third = torch.empty(2 << 20)
        del second, third

    leaf = torch.zeros(1 << 20, requires_grad=True)

    def backward():
        leaf.exp().sum().backward()  # exp's result, kept, and the gradient: 8 MiB, and scalars

    found = [peak_bytes_of(work) for work in (blocks, backward)]
    if [peak >> 20 for peak in found] != [20, 8] or found[0] != 20 << 20:
        sys.exit(f"recompute.py: the profiler's events give peaks of {found} bytes where they are 20 and 8 MiB")
    return found


def main():
    found = check_peaks()
    if "--check" in sys.argv:
        print(*found)
        return
    torch.manual_seed(0)
    model = Gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=1e-2, fused=True)
    torch.manual_seed(1)
    ids = torch.randint(256, (BATCH, LENGTH + 1))
    inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    def step(run):
        loss = functional.cross_entropy(model(inputs, run), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    first = step(RUNS["python_plain"])
    peaks = {side: peak_bytes_of(lambda: step(run)) for side, run in RUNS.items()}
    threads = f"AdamW(fused=True), {torch.get_num_threads()} threads, torch {torch.__version__}"
    rounds.print_info("python", f"torch.utils.checkpoint(use_reentrant=False) around each block, {threads}")
    rounds.print_info("python_no_rng", "the same with preserve_rng_state=False")
    rounds.print_info("python_plain", f"the same model without checkpoint, first loss {first:.5f}")

    def take_round(n):
        sides = list(RUNS)
        for i in range(len(sides)):
            side = sides[(i + n) % len(sides)]
            start = time.perf_counter()
            step(RUNS[side])
            rounds.print_sample(side, time.perf_counter() - start, 1, count=peaks[side])

    rounds.serve_rounds(take_round)


if __name__ == "__main__":
    main()
