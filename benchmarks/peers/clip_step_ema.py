# SPDX-License-Identifier: Apache-2.0
"""The job of `numerics clip_step_ema` in Python: foreach clip_grad_norm_, AdamW(fused=True), AveragedModel with the
foreach average; 2000 tensors of 1000."""

import time

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import rounds

STEPS = 10


class Many(torch.nn.Module):
    def __init__(self, count, size):
        super().__init__()
        self.p = torch.nn.ParameterList([torch.nn.Parameter(torch.randn(size)) for _ in range(count)])


def main():
    torch.manual_seed(0)
    model = Many(2000, 1000)
    parameters = list(model.parameters())
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, fused=True)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))

    def take_round(_):
        start = time.perf_counter()
        for _ in range(STEPS):
            torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
            optimizer.step()
            average.update_parameters(model)
        rounds.print_sample("python", time.perf_counter() - start, STEPS)

    rounds.print_info("python", f"torch {torch.__version__}: clip_grad_norm_(foreach), AdamW(fused), AveragedModel "
                      f"(get_ema_multi_avg_fn), 2000 x 1000, {torch.get_num_threads()} threads")
    rounds.serve_rounds(take_round)


if __name__ == "__main__":
    main()
