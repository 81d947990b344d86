# SPDX-License-Identifier: Apache-2.0
"""The job of `distributed link` in Python: DistributedDataParallel with the same buckets, hooks and steps; a rank that
rate_limited_link.py has started."""

import time

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

import rounds

WIDTH, BATCH, LAYERS, STEPS = 1024, 64, 8, 2
BUCKET_MB = 4  # and 1 MiB first, DistributedDataParallel's own
HOOKS = {"python": None, "python_fp16": default_hooks.fp16_compress_hook, "python_bf16": default_hooks.bf16_compress_hook}


def make(hook):
    torch.manual_seed(0)
    net = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])
    ddp = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=BUCKET_MB, gradient_as_bucket_view=True)
    if hook is not None:
        ddp.register_comm_hook(None, hook)
    return ddp


def step(ddp, x):
    ddp.zero_grad()
    ddp(x).pow(2).mean().backward()


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    x = torch.randn(BATCH, WIDTH)
    ways = [(name, make(hook)) for name, hook in HOOKS.items()]
    for _, ddp in ways:
        step(ddp, x)

    def take_round(n):
        for i in range(len(ways)):
            name, ddp = ways[(i + n) % len(ways)]
            dist.barrier()
            start = time.perf_counter()
            for _ in range(STEPS):
                step(ddp, x)
            if rank == 0:
                rounds.print_sample(name, time.perf_counter() - start, STEPS)

    following = torch.zeros(1, dtype=torch.long)
    if rank == 0:
        rounds.print_info("python", f"torch {torch.__version__}: DistributedDataParallel, gradient_as_bucket_view, buckets "
                          f"of {BUCKET_MB} MiB, 1 thread")

        def tell_and_take(n):
            dist.broadcast(following.fill_(n), 0)
            take_round(n)

        rounds.serve_rounds(tell_and_take)
        dist.broadcast(following.fill_(-1), 0)
    else:
        dist.broadcast(following, 0)
        while following.item() >= 0:
            take_round(following.item())
            dist.broadcast(following, 0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
