# SPDX-License-Identifier: Apache-2.0
"""The CNN of `throughput --model cnn` in Python, eager, with AdamW(fused=True) and the DataLoader:

    train_cnn.py [--channels-last] [--side NAME] [--batches N] [--data FOLDER]

Conv(1, 32, 3, padding 1) ReLU MaxPool(2), Conv(32, 64, 3, padding 1) ReLU MaxPool(2), Linear(3136, 128) ReLU
Linear(128, 10); cross entropy; batches of 128, shuffled, fetched whole (BatchSampler, batch_size=None: the DataLoader's
faster way). A round trains N batches (default: one epoch)."""

import argparse
import itertools
import time

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

import fashion_mnist
import rounds

BATCH_SIZE = 128


def make_model():
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(3136, 128), nn.ReLU(), nn.Linear(128, 10))


def endless(loader):
    while True:
        yield from loader


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--side", default="python")
    parser.add_argument("--batches", type=int, default=469)
    parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist")
    options = parser.parse_args()

    torch.manual_seed(0)
    layout = torch.channels_last if options.channels_last else torch.contiguous_format
    model = make_model().to(memory_format=layout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    criterion = nn.CrossEntropyLoss()
    dataset = TensorDataset(*fashion_mnist.load(options.data))
    sampler = BatchSampler(RandomSampler(dataset), BATCH_SIZE, drop_last=False)
    batches = endless(DataLoader(dataset, sampler=sampler, batch_size=None))

    def take_round(_):
        samples = 0
        start = time.perf_counter()
        for images, labels in itertools.islice(batches, options.batches):
            loss = criterion(model(images.to(memory_format=layout)), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            samples += len(labels)
        rounds.print_sample(options.side, time.perf_counter() - start, samples)

    settings = "channels_last, " if options.channels_last else ""
    rounds.print_info(options.side, f"Python torch {torch.__version__} eager, AdamW(fused=True), DataLoader by "
                      f"BatchSampler, {settings}{torch.get_num_threads()} threads")
    rounds.serve_rounds(take_round)


if __name__ == "__main__":
    main()
