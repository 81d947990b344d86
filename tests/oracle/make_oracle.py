# SPDX-License-Identifier: Apache-2.0
"""Writes oracle.txt beside itself: what Python torch gives for optimizers and schedules over 50 steps in float64.

    .venv/bin/python tests/oracle/make_oracle.py

One line a case: its name, then the values. Parameters and gradients follow closed forms that the C++ test repeats.
"""

import math
import pathlib

import torch

STEPS = 50


def parameters():
    return [
        torch.tensor([math.sin(1 + i) for i in range(4)], dtype=torch.float64, requires_grad=True),
        torch.tensor([math.cos(2 + i) for i in range(3)], dtype=torch.float64, requires_grad=True),
    ]


def gradient(parameter, step, size):
    return torch.tensor([math.cos((i + 1) * (step + 1) + parameter) * (1 + 0.1 * step) for i in range(size)],
                        dtype=torch.float64)


def run(make, schedule=None):
    params = parameters()
    optimizer = make(params)
    scheduler = schedule(optimizer) if schedule else None
    for step in range(STEPS):
        for p, parameter in enumerate(params):
            # The second parameter takes no part in every third step, and in the first two.
            idle = p == 1 and (step < 2 or step % 3 == 0)
            parameter.grad = None if idle else gradient(p, step, parameter.numel())
        optimizer.step()
        if scheduler:
            scheduler.step()
    return [v for p in params for v in p.tolist()]


def rates(schedule, steps):
    parameter = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    scheduler = schedule(optimizer)
    values = []
    for _ in range(steps):
        values.append(optimizer.param_groups[0]["lr"])
        parameter.grad = torch.zeros(1)
        optimizer.step()
        scheduler.step()
    return values


def warmup_cosine(warmup, total, final):
    def make(optimizer):
        lr = torch.optim.lr_scheduler
        return lr.SequentialLR(
            optimizer,
            [lr.LinearLR(optimizer, start_factor=1 / warmup, total_iters=warmup - 1),
             lr.CosineAnnealingLR(optimizer, T_max=total - warmup, eta_min=final)],
            milestones=[warmup])
    return make


def main():
    o = torch.optim
    cases = {
        "adamw": run(lambda p: o.AdamW(p, lr=0.01)),
        "adamw_options": run(lambda p: o.AdamW(p, lr=0.02, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1)),
        "adamw_amsgrad": run(lambda p: o.AdamW(p, lr=0.01, amsgrad=True)),
        "adamw_maximize": run(lambda p: o.AdamW(p, lr=0.01, maximize=True)),
        "adamw_groups": run(lambda p: o.AdamW([{"params": p[:1], "lr": 0.05},
                                               {"params": p[1:], "weight_decay": 0.0}], lr=0.01, weight_decay=0.2)),
        "sgd": run(lambda p: o.SGD(p, lr=0.01)),
        "sgd_momentum": run(lambda p: o.SGD(p, lr=0.01, momentum=0.9)),
        "sgd_nesterov": run(lambda p: o.SGD(p, lr=0.01, momentum=0.9, nesterov=True)),
        "sgd_dampening": run(lambda p: o.SGD(p, lr=0.01, momentum=0.9, dampening=0.5, weight_decay=0.1)),
        "sgd_maximize": run(lambda p: o.SGD(p, lr=0.01, momentum=0.9, dampening=0.3, weight_decay=0.1, maximize=True)),
        "warmup_cosine": rates(warmup_cosine(5, 40, 0.0), 40),
        "warmup_cosine_final": rates(warmup_cosine(10, 50, 0.1), 50),
    }
    path = pathlib.Path(__file__).with_name("oracle.txt")
    lines = [f"{name} {' '.join(repr(v) for v in values)}\n" for name, values in cases.items()]
    path.write_text(f"# torch {torch.__version__}, written by make_oracle.py\n" + "".join(lines))


main()
