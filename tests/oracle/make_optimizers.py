# SPDX-License-Identifier: Apache-2.0
"""Writes optimizers.txt beside itself: parameters after 50 steps in float64, by Python torch's optimizers, and, for those
that torch lacks (Lion, LAMB, LARS), by the formulas of their papers in plain Python.

    .venv/bin/python tests/oracle/make_optimizers.py

One line a case: its name, then the values. Parameters and gradients follow closed forms that the C++ tests repeat."""

import math
import pathlib

import torch

STEPS = 50
SIZES = (19, 6)


def initial():
    return [[math.sin(1 + i) for i in range(SIZES[0])], [math.cos(2 + i) for i in range(SIZES[1])]]


def gradient(parameter, step):
    """None where the parameter takes no part: the second one in the first two steps and in every third."""
    if parameter == 1 and (step < 2 or step % 3 == 0):
        return None
    return [math.cos((i + 1) * (step + 1) + parameter) * (1 + 0.1 * step) for i in range(SIZES[parameter])]


def run_torch(make):
    params = [torch.tensor(values, dtype=torch.float64, requires_grad=True) for values in initial()]
    optimizer = make(params)
    for step in range(STEPS):
        for p, parameter in enumerate(params):
            values = gradient(p, step)
            parameter.grad = None if values is None else torch.tensor(values, dtype=torch.float64)
        optimizer.step()
    return [v for p in params for v in p.tolist()]


def run_plain(update, options):
    """`options`: one dict for all parameters, or one for each."""
    params = initial()
    states = [{}, {}]
    for step in range(STEPS):
        for p in range(2):
            g = gradient(p, step)
            if g is None:
                continue
            own = options[p] if isinstance(options, list) else options
            if own.get("maximize"):
                g = [-v for v in g]
            states[p]["t"] = states[p].get("t", 0) + 1
            params[p] = update(params[p], g, states[p], own)
    return [v for p in params for v in p]


def norm(values):
    return math.sqrt(math.fsum(v * v for v in values))


def lion(p, g, state, o):
    """Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023, algorithm 2."""
    m = state.get("m", [0.0] * len(p))
    c = [o["beta1"] * a + (1 - o["beta1"]) * b for a, b in zip(m, g)]
    state["m"] = [o["beta2"] * a + (1 - o["beta2"]) * b for a, b in zip(m, g)]
    return [x - o["lr"] * (math.copysign(1, u) + o["weight_decay"] * x) for x, u in zip(p, c)]


def lamb(p, g, state, o):
    """You et al., "Large Batch Optimization for Deep Learning", 2020, algorithm 2, with phi(x) = x."""
    t = state["t"]
    state["m"] = [o["beta1"] * a + (1 - o["beta1"]) * b for a, b in zip(state.get("m", [0.0] * len(p)), g)]
    state["v"] = [o["beta2"] * a + (1 - o["beta2"]) * b * b for a, b in zip(state.get("v", [0.0] * len(p)), g)]
    m = [a / (1 - o["beta1"] ** t) for a in state["m"]]
    v = [a / (1 - o["beta2"] ** t) for a in state["v"]]
    u = [a / (math.sqrt(b) + o["eps"]) + o["weight_decay"] * x for a, b, x in zip(m, v, p)]
    adapts = o["weight_decay"] != 0 or o.get("adapt_undecayed", True)
    ratio = norm(p) / norm(u) if adapts and norm(p) and norm(u) else 1.0
    return [x - o["lr"] * ratio * d for x, d in zip(p, u)]


def lars(p, g, state, o):
    """You, Gitman and Ginsburg, "Large Batch Training of Convolutional Networks", 2017, algorithm 1."""
    adapts = o["weight_decay"] != 0 or o.get("adapt_undecayed", True)
    local = 1.0
    if adapts and norm(p) and norm(g):
        local = o["trust_coefficient"] * norm(p) / (norm(g) + o["weight_decay"] * norm(p) + o.get("eps", 0.0))
    buffer = state.get("m", [0.0] * len(p))
    state["m"] = [o["momentum"] * m + o["lr"] * local * (d + o["weight_decay"] * x) for m, d, x in zip(buffer, g, p)]
    return [x - m for x, m in zip(p, state["m"])]


def torch_cases():
    o = torch.optim

    def groups(first, second):
        return lambda p: [{"params": p[:1], **first}, {"params": p[1:], **second}]

    return {
        "adamw": lambda p: o.AdamW(p, lr=0.01),
        "adamw_options": lambda p: o.AdamW(p, lr=0.02, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1),
        "adamw_amsgrad": lambda p: o.AdamW(p, lr=0.01, amsgrad=True),
        "adamw_maximize": lambda p: o.AdamW(p, lr=0.01, maximize=True),
        "adamw_groups": lambda p: o.AdamW(groups({"lr": 0.05, "betas": (0.7, 0.9)},
                                                 {"weight_decay": 0.0, "amsgrad": True})(p),
                                          lr=0.01, weight_decay=0.2),
        "adam": lambda p: o.Adam(p, lr=0.01),
        "adam_decay": lambda p: o.Adam(p, lr=0.02, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1),
        "adam_amsgrad": lambda p: o.Adam(p, lr=0.01, weight_decay=0.1, amsgrad=True),
        "adam_maximize": lambda p: o.Adam(p, lr=0.01, weight_decay=0.1, maximize=True),
        "adam_decoupled": lambda p: o.Adam(p, lr=0.01, weight_decay=0.1, decoupled_weight_decay=True),
        "sgd": lambda p: o.SGD(p, lr=0.01),
        "sgd_momentum": lambda p: o.SGD(p, lr=0.01, momentum=0.9),
        "sgd_nesterov": lambda p: o.SGD(p, lr=0.01, momentum=0.9, nesterov=True),
        "sgd_dampening": lambda p: o.SGD(p, lr=0.01, momentum=0.9, dampening=0.5, weight_decay=0.1),
        "sgd_maximize": lambda p: o.SGD(p, lr=0.01, momentum=0.9, dampening=0.3, weight_decay=0.1, maximize=True),
        "sgd_groups": lambda p: o.SGD(groups({"momentum": 0.9}, {"lr": 0.05})(p), lr=0.01, weight_decay=0.1),
        "adagrad": lambda p: o.Adagrad(p, lr=0.05),
        "adagrad_options": lambda p: o.Adagrad(p, lr=0.05, lr_decay=0.1, weight_decay=0.1,
                                               initial_accumulator_value=0.5, eps=1e-6),
        "adagrad_maximize": lambda p: o.Adagrad(p, lr=0.05, weight_decay=0.1, maximize=True),
        "rmsprop": lambda p: o.RMSprop(p, lr=0.01),
        "rmsprop_options": lambda p: o.RMSprop(p, lr=0.01, alpha=0.9, eps=1e-5, weight_decay=0.1),
        "rmsprop_momentum": lambda p: o.RMSprop(p, lr=0.01, momentum=0.9),
        "rmsprop_centered": lambda p: o.RMSprop(p, lr=0.01, centered=True),
        "rmsprop_all": lambda p: o.RMSprop(p, lr=0.01, alpha=0.95, weight_decay=0.1, momentum=0.8, centered=True,
                                           maximize=True),
        "rmsprop_groups": lambda p: o.RMSprop(groups({"momentum": 0.9, "centered": True}, {"alpha": 0.8})(p), lr=0.01),
    }


def plain_cases():
    lion_o = {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0}
    lamb_o = {"lr": 0.01, "beta1": 0.9, "beta2": 0.999, "eps": 1e-6, "weight_decay": 0.01}
    lars_o = {"lr": 0.5, "momentum": 0.9, "weight_decay": 1e-4, "trust_coefficient": 0.01}
    return {
        "lion": (lion, lion_o),
        "lion_options": (lion, lion_o | {"beta1": 0.8, "beta2": 0.95, "weight_decay": 0.5, "maximize": True}),
        "lamb": (lamb, lamb_o),
        "lamb_maximize": (lamb, lamb_o | {"beta1": 0.8, "beta2": 0.95, "eps": 1e-3, "maximize": True}),
        "lamb_groups": (lamb, [lamb_o, lamb_o | {"weight_decay": 0.0, "adapt_undecayed": False}]),
        "lamb_undecayed": (lamb, lamb_o | {"weight_decay": 0.0}),
        "lars": (lars, lars_o),
        "lars_plain": (lars, lars_o | {"momentum": 0.0, "weight_decay": 0.1, "eps": 0.1}),
        "lars_maximize": (lars, lars_o | {"maximize": True}),
        "lars_groups": (lars, [lars_o, lars_o | {"lr": 0.01, "weight_decay": 0.0, "adapt_undecayed": False}]),
    }


def main():
    cases = {name: run_torch(make) for name, make in torch_cases().items()}
    cases |= {name: run_plain(*case) for name, case in plain_cases().items()}
    path = pathlib.Path(__file__).with_name("optimizers.txt")
    lines = [f"{name} {' '.join(repr(v) for v in values)}\n" for name, values in cases.items()]
    path.write_text(f"# torch {torch.__version__}, written by make_optimizers.py\n" + "".join(lines))


main()
