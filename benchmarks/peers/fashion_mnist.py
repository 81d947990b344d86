# SPDX-License-Identifier: Apache-2.0
"""Fashion-MNIST's training set as the tensors that the C++ side uses: float32 [60000, 1, 28, 28] in [0, 1], int64 labels."""

import gzip
import pathlib

import numpy
import torch


def load(folder):
    folder = pathlib.Path(folder)
    with gzip.open(folder / "train-images-idx3-ubyte.gz") as file:
        images = numpy.frombuffer(file.read(), numpy.uint8, offset=16).reshape(-1, 1, 28, 28)
    with gzip.open(folder / "train-labels-idx1-ubyte.gz") as file:
        labels = numpy.frombuffer(file.read(), numpy.uint8, offset=8)
    return torch.from_numpy(images.astype(numpy.float32) / 255), torch.from_numpy(labels.astype(numpy.int64))
