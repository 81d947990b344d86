# SPDX-License-Identifier: Apache-2.0
"""Python's DataLoader on the data of loader.cpp, 0 and 2 workers, in its two ways: sample by sample (the default), and
whole batches by BatchSampler with batch_size=None. dataloader.py [FOLDER]"""

import sys
import time

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

import fashion_mnist
import rounds

BATCH_SIZE = 128


def make_loaders(dataset):
    loaders = {}
    for workers in (0, 2):
        keep = {"num_workers": workers, "persistent_workers": workers > 0, "prefetch_factor": 4 if workers else None}
        loaders[f"default_{workers}"] = DataLoader(dataset, batch_size=BATCH_SIZE, shuffle=True, **keep)
        sampler = BatchSampler(RandomSampler(dataset), BATCH_SIZE, drop_last=False)
        loaders[f"batched_{workers}"] = DataLoader(dataset, sampler=sampler, batch_size=None, **keep)
    return loaders


def main():
    images, labels = fashion_mnist.load(sys.argv[1] if len(sys.argv) > 1 else "/usr/share/datasets/fashion-mnist")
    loaders = make_loaders(TensorDataset(images, labels))
    version = f"Python DataLoader of torch {torch.__version__}, batch {BATCH_SIZE}, shuffled"
    rounds.print_info("default", version)
    rounds.print_info("batched", f"{version}, BatchSampler with batch_size=None")

    def take_round(_):
        for side, loader in loaders.items():
            start = time.perf_counter()
            seen = sum(len(target) for _, target in loader)
            seconds = time.perf_counter() - start
            if seen != len(labels):
                sys.exit(f"dataloader: an epoch of {seen}")
            rounds.print_sample(side, seconds, seen)

    rounds.serve_rounds(take_round)


if __name__ == "__main__":
    main()
