# SPDX-License-Identifier: Apache-2.0
"""Writes precision.txt beside itself: what Python torch's GradScaler and clipping give over 50 steps.

    .venv/bin/python tests/oracle/make_precision.py

One line a case: its name, then the values. Gradients follow closed forms that the C++ test repeats."""

import math
import pathlib

import torch

STEPS = 50


def scaler(bad, **options):
    """scale, growth tracker and parameters after every step; gradients are inf or NaN in the steps of `bad`."""
    parameter = torch.tensor([1.0, -2.0, 0.5], requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    grad_scaler = torch.amp.GradScaler("cpu", **options)
    values = []
    for step in range(STEPS):
        optimizer.zero_grad()
        weight = torch.tensor([math.cos(step + i) for i in range(3)])
        if step in bad:
            weight[step % 3] = math.inf if step % 2 == 0 else math.nan
        grad_scaler.scale((parameter * weight).sum()).backward()
        grad_scaler.unscale_(optimizer)
        grad_scaler.step(optimizer)
        grad_scaler.update()
        state = grad_scaler.state_dict()
        values += [state["scale"], float(state["_growth_tracker"]), *parameter.tolist()]
    return values


def clip(treat):
    parameters = [torch.zeros(4, dtype=torch.float64, requires_grad=True), torch.zeros(2, 3, requires_grad=True)]
    values = []
    for step in range(STEPS):
        for p, parameter in enumerate(parameters):
            flat = [math.cos((i + 1) * (step + 1) + p) * (1 + step) for i in range(parameter.numel())]
            parameter.grad = torch.tensor(flat, dtype=parameter.dtype).view_as(parameter)
        treat(parameters)
        values += [v for parameter in parameters for v in parameter.grad.flatten().tolist()]
    return values


def main():
    utils = torch.nn.utils
    cases = {
        "scaler": scaler({0, 1, 2, 17, 30, 31}, init_scale=1024.0, growth_interval=5),
        "scaler_options": scaler({3, 9, 10}, init_scale=64.0, growth_factor=4.0, backoff_factor=0.25, growth_interval=3),
        "scaler_never": scaler(set(), init_scale=65536.0, growth_interval=2000),
        "clip_norm_2": clip(lambda p: utils.clip_grad_norm_(p, 3.0)),
        "clip_norm_inf": clip(lambda p: utils.clip_grad_norm_(p, 3.0, norm_type=math.inf)),
        "clip_norm_3": clip(lambda p: utils.clip_grad_norm_(p, 3.0, norm_type=3.0)),
        "clip_norm_1": clip(lambda p: utils.clip_grad_norm_(p, 3.0, norm_type=1.0)),
        "clip_value": clip(lambda p: utils.clip_grad_value_(p, 2.5)),
        "clip_per_group": clip(lambda p: [utils.clip_grad_norm_([q], limit) for q, limit in zip(p, (2.0, 5.0))]),
    }
    path = pathlib.Path(__file__).with_name("precision.txt")
    lines = [f"{name} {' '.join(repr(v) for v in values)}\n" for name, values in cases.items()]
    path.write_text(f"# torch {torch.__version__}, written by make_precision.py\n" + "".join(lines))


main()
