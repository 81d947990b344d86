# SPDX-License-Identifier: Apache-2.0
"""Writes flops.txt beside itself: FLOPs that torch.utils.flop_counter counts for single operators, forward and backward.

    .venv/bin/python tests/oracle/make_flops.py

One line a case, tab-separated: operator, FLOPs, then what Kineto would record of the call: shapes, types and values of
its arguments as JSON. The arguments are random in size, on the meta device: nothing is computed.
"""

import json
import pathlib
import random

import torch
from torch.utils.flop_counter import FlopCounterMode

FLOATS = {torch.float32: "float", torch.bfloat16: "c10::BFloat16", torch.float64: "double"}
TYPES = FLOATS | {torch.int64: "long int"}
aten = torch.ops.aten


def tensor(*sizes, dtype=torch.float32):
    return torch.empty(sizes, device="meta", dtype=dtype)


def line(operator, arguments):
    with FlopCounterMode(display=False) as counter:
        operator(*arguments)
    shapes, types, values = [], [], []
    for argument in arguments:
        is_tensor = isinstance(argument, torch.Tensor)
        shapes.append(list(argument.shape) if is_tensor else [])
        types.append(TYPES[argument.dtype] if is_tensor else "ScalarList" if isinstance(argument, list) else "Scalar")
        values.append("" if is_tensor or argument is None else str(argument))
    name = "aten::" + str(operator).removeprefix("aten.").split(".")[0]
    return "\t".join([name, str(counter.get_total_flops()), *map(json.dumps, [shapes, types, values])])


def products(rng):
    for dtype in FLOATS:
        b, m, k, n = (rng.randint(1, 70) for _ in range(4))
        yield aten.mm.default, [tensor(m, k, dtype=dtype), tensor(k, n, dtype=dtype)]
        yield aten.addmm.default, [tensor(n), tensor(m, k), tensor(k, n)]
        yield aten.bmm.default, [tensor(b, m, k, dtype=dtype), tensor(b, k, n, dtype=dtype)]
        yield aten.baddbmm.default, [tensor(b, m, n), tensor(b, m, k), tensor(b, k, n)]


def convolutions(rng):
    for dimensions in (1, 2, 3):
        for transposed in (False, True):
            for groups in (1, 2):
                batch, c_in, c_out = rng.randint(1, 5), groups * rng.randint(1, 4), groups * rng.randint(1, 4)
                spatial = [rng.randint(7, 12) for _ in range(dimensions)]
                kernel = [rng.randint(1, 3) for _ in range(dimensions)]
                stride, padding = [rng.randint(1, 2)] * dimensions, [rng.randint(0, 1)] * dimensions
                dilation, more = [rng.randint(1, 2)] * dimensions, [0] * dimensions
                x = tensor(batch, c_in, *spatial)
                weight = tensor(*([c_in, c_out // groups] if transposed else [c_out, c_in // groups]), *kernel)
                geometry = [stride, padding, dilation, transposed, more, groups]
                yield aten.convolution.default, [x, weight, None, *geometry]
                gradient = aten.convolution.default(x, weight, None, *geometry)
                for mask in ([True, True, False], [True, False, False], [False, True, True]):
                    if groups > 1 and mask[1]:
                        continue  # its gradient of the weight counts the channels of all groups
                    yield aten.convolution_backward.default, [gradient, x, weight, [c_out], *geometry, mask]


def attentions(rng):
    for length in (rng.randint(1, 40) for _ in range(3)):
        b, h, width, keys = rng.randint(1, 3), rng.randint(1, 4), 8 * rng.randint(1, 4), rng.randint(1, 40)
        q, k, v = tensor(b, h, length, width), tensor(b, h, keys, width), tensor(b, h, keys, width)
        yield aten._scaled_dot_product_flash_attention.default, [q, k, v]
        yield aten._scaled_dot_product_efficient_attention.default, [q, k, v, None, False]
        logsumexp, seed = tensor(b, h, length), torch.empty((), device="meta", dtype=torch.long)
        rest = [q, logsumexp, None, None, length, keys, 0.0, False, seed, seed]
        yield aten._scaled_dot_product_flash_attention_backward.default, [q, q, k, v, *rest]


def main():
    rng = random.Random(8)
    cases = [*products(rng), *convolutions(rng), *attentions(rng)]
    text = "".join(line(operator, arguments) + "\n" for operator, arguments in cases)
    pathlib.Path(__file__).with_name("flops.txt").write_text(text)


if __name__ == "__main__":
    main()
