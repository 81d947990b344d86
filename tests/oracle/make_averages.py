# SPDX-License-Identifier: Apache-2.0
"""Writes averages.txt beside itself: what Python torch's AveragedModel gives over 50 steps in float64.

    .venv/bin/python tests/oracle/make_averages.py

One line a case: its name, then weight, bias and the float buffer after the last step. The model's values follow closed
forms that the C++ test repeats.
"""

import math
import pathlib

import torch
from torch.optim import swa_utils

STEPS = 50


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(2, 3, dtype=torch.float64))
        self.bias = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(2, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def move(self, step):
        for index, tensor in enumerate([self.weight, self.bias, self.mean]):
            values = [math.sin((i + 1) * (step + 1) + index) + 0.1 * step for i in range(tensor.numel())]
            tensor.copy_(torch.tensor(values, dtype=torch.float64).reshape(tensor.shape))
        self.count.fill_(step)


def warmed(decay):
    @torch.no_grad()
    def update(averages, weights, n):
        t = int(n)
        torch._foreach_lerp_(averages, weights, 1 - min(decay, (1 + t) / (10 + t)))

    return update


def equal(averages, weights, n):
    """Python's own update, told n as a number: 1 / (n + 1) of an integer tensor is rounded to float32."""
    swa_utils.get_swa_multi_avg_fn()(averages, weights, int(n))


def run(multi_avg_fn=None, use_buffers=False, start=0, every=1):
    model = Model()
    model.move(-1)
    averaged = swa_utils.AveragedModel(model, multi_avg_fn=multi_avg_fn, use_buffers=use_buffers)
    for step in range(STEPS):
        model.move(step)
        if step >= start and (step - start) % every == 0:
            if use_buffers:  # foreach wants one dtype a list, and integers are copied
                averaged.module.count, model.count = averaged.module.count.double(), model.count.double()
            averaged.update_parameters(model)
            if use_buffers:
                model.count = model.count.long()
    m = averaged.module
    return m.weight.flatten().tolist() + m.bias.tolist() + m.mean.tolist()


def main():
    ema = swa_utils.get_ema_multi_avg_fn
    cases = {
        "ema": run(ema(0.95)),
        "ema_buffers": run(ema(0.9), use_buffers=True),
        "ema_every": run(ema(0.8), start=2, every=3),
        "ema_warmup": run(warmed(0.85)),
        "swa": run(equal),
        "swa_start": run(equal, start=9, every=4),
        "swa_buffers": run(equal, use_buffers=True),
    }
    path = pathlib.Path(__file__).with_name("averages.txt")
    lines = [f"{name} {' '.join(repr(v) for v in values)}\n" for name, values in cases.items()]
    path.write_text(f"# torch {torch.__version__}, written by make_averages.py\n" + "".join(lines))


main()
