# SPDX-License-Identifier: Apache-2.0
"""Writes schedules.txt beside itself: learning rates and momenta of Python torch's schedulers over 60 and more steps.

    .venv/bin/python tests/oracle/make_schedules.py

One line a case: its name, then the values. The optimizer's learning rate is 1 (one-cycle: the peak is 1).
"""

import math
import pathlib
import warnings

import torch

lr = torch.optim.lr_scheduler
STEPS = 60


def run(make, steps=STEPS, rate=1.0, momentum=False):
    parameter = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=rate, momentum=0.9)
    scheduler = make(optimizer)
    rates, momenta = [], []
    for step in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        momenta.append(optimizer.param_groups[0]["momentum"])
        optimizer.step()
        if step + 1 < steps:
            scheduler.step()
    return momenta if momentum else rates


def one_cycle(name, **options):
    # With a peak of 1 the rates are factors.
    make = lambda o: lr.OneCycleLR(o, max_lr=1.0, **options)
    steps = options["total_steps"]
    return {name: run(make, steps), name + "_momentum": run(make, steps, momentum=True)}


def metric(i):
    """A series with falls, stalls, a NaN and a late rise; the C++ test repeats it."""
    if i == 23:
        return math.nan
    return 2.0 / (1 + 0.3 * min(i, 12)) + (0.002 * math.sin(3.0 * i) if i > 6 else 0.0) - (0.4 if i > 40 else 0.0)


def plateau(rising=False, **options):
    parameter = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    scheduler = lr.ReduceLROnPlateau(optimizer, **options)
    values = []
    for i in range(70):
        scheduler.step(3 - metric(i) if rising else metric(i))
        values.append(optimizer.param_groups[0]["lr"])
    return values


def inverse_sqrt(warmup):
    return lambda step: min((step + 1) / warmup, math.sqrt(warmup / (step + 1)))


def sequence(optimizer):
    return lr.SequentialLR(optimizer, [
        lr.LinearLR(optimizer, start_factor=0.1, end_factor=1.0, total_iters=10),
        lr.ConstantLR(optimizer, factor=1.0, total_iters=0),
        lr.CosineAnnealingLR(optimizer, T_max=29),
    ], milestones=[10, 30])


def warmup_cosine(warmup, total, final):
    return lambda optimizer: lr.SequentialLR(optimizer, [
        lr.LinearLR(optimizer, start_factor=1 / warmup, total_iters=warmup - 1),
        lr.CosineAnnealingLR(optimizer, T_max=total - warmup, eta_min=final),
    ], milestones=[warmup])


def warmup_polynomial(optimizer):
    return lr.SequentialLR(optimizer, [
        lr.LinearLR(optimizer, start_factor=1 / 8, end_factor=1.0, total_iters=7),
        lr.PolynomialLR(optimizer, total_iters=40, power=2.0),
    ], milestones=[8])


def groups():
    parameters = [torch.zeros(1, requires_grad=True) for _ in range(2)]
    optimizer = torch.optim.SGD([{"params": [p]} for p in parameters], lr=1.0)
    scheduler = lr.LambdaLR(optimizer, [inverse_sqrt(9), lambda step: 0.93**step])
    first, second = [], []
    for _ in range(STEPS):
        first.append(optimizer.param_groups[0]["lr"])
        second.append(optimizer.param_groups[1]["lr"])
        optimizer.step()
        scheduler.step()
    return {"group_0": first, "group_1": second}


def main():
    warnings.simplefilter("ignore")
    cases = {
        "linear": run(lambda o: lr.LinearLR(o, start_factor=1 / 3, end_factor=1.0, total_iters=20)),
        "linear_down": run(lambda o: lr.LinearLR(o, start_factor=1.0, end_factor=0.1, total_iters=45)),
        "cosine": run(lambda o: lr.CosineAnnealingLR(o, T_max=59)),
        "cosine_final": run(lambda o: lr.CosineAnnealingLR(o, T_max=70, eta_min=0.05)),
        "polynomial": run(lambda o: lr.PolynomialLR(o, total_iters=50)),
        "polynomial_power": run(lambda o: lr.PolynomialLR(o, total_iters=40, power=2.5)),
        "exponential": run(lambda o: lr.ExponentialLR(o, gamma=0.95)),
        "step": run(lambda o: lr.StepLR(o, step_size=7, gamma=0.5)),
        "multi_step": run(lambda o: lr.MultiStepLR(o, milestones=[5, 20, 20, 41], gamma=0.3)),
        "inverse_sqrt": run(lambda o: lr.LambdaLR(o, inverse_sqrt(12))),
        "sequence": run(sequence),
        "warmup_cosine": run(warmup_cosine(5, 60, 0.0)),
        "warmup_cosine_final": run(warmup_cosine(10, 60, 0.1)),
        "warmup_polynomial": run(warmup_polynomial),
        **groups(),
        **one_cycle("one_cycle", total_steps=60),
        **one_cycle("one_cycle_linear", total_steps=61, pct_start=0.45, anneal_strategy="linear", div_factor=10.0,
                    final_div_factor=100.0, base_momentum=0.8, max_momentum=0.9),
        **one_cycle("one_cycle_three", total_steps=67, three_phase=True),
        **one_cycle("one_cycle_three_linear", total_steps=55, pct_start=0.21, three_phase=True,
                    anneal_strategy="linear", final_div_factor=10.0),
        **one_cycle("one_cycle_no_rise", total_steps=52, pct_start=0.0),
        "plateau": plateau(patience=2),
        "plateau_cooldown": plateau(factor=0.5, patience=1, cooldown=4, min_lr=0.1),
        "plateau_abs": plateau(factor=0.7, patience=3, threshold=0.01, threshold_mode="abs"),
        "plateau_max": plateau(rising=True, mode="max", factor=0.3, patience=2, threshold=0.001),
        "plateau_max_abs": plateau(rising=True, mode="max", factor=0.3, patience=0, threshold=0.02, threshold_mode="abs",
                                   cooldown=1, eps=1e-3),
    }
    path = pathlib.Path(__file__).with_name("schedules.txt")
    lines = [f"{name} {' '.join(repr(v) for v in values)}\n" for name, values in cases.items()]
    path.write_text(f"# torch {torch.__version__}, written by make_schedules.py\n" + "".join(lines))


main()
