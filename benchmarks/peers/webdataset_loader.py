# SPDX-License-Identifier: Apache-2.0
"""WebDataset on the images of make_images.py at its best: batched inside the pipeline, WebLoader without a batch size of
its own, shuffled by shards and a buffer of 1,000; as many workers as WORKERS says
(0,1,2), which stay. webdataset_loader.py FOLDER 64|256 WORKERS"""

import pathlib
import sys
import time

import torch
import webdataset as wds

import images
import rounds


def make_loader(folder, size, workers):
    shards = sorted(str(path) for path in pathlib.Path(folder, str(size), "shards").glob("*.tar"))
    prepare = images.DecodeCropFlip(images.CROPS[size])
    dataset = (
        wds.WebDataset(shards, shardshuffle=len(shards), seed=0)
        .shuffle(1000)
        .map(lambda sample: (prepare(sample["jpg"]), int(sample["cls"])))
        .batched(images.BATCH_SIZE, collation_fn=images.collate)
    )
    keep = {"persistent_workers": True, "prefetch_factor": 4} if workers else {}
    return wds.WebLoader(dataset, batch_size=None, num_workers=workers, **keep)


def main():
    folder, size = sys.argv[1], int(sys.argv[2])
    counts = [int(count) for count in sys.argv[3].split(",")]
    loaders = {f"webdataset_{workers}": make_loader(folder, size, workers) for workers in counts}
    expected = {64: 10000, 256: 4000}[size]
    torch.set_num_threads(1)  # workers have one anyway; without workers two threads wait for each other more than they win
    rounds.print_info("webdataset", f"webdataset {wds.__version__}, torch {torch.__version__}, simplejpeg, batched inside, "
                                    f"shuffle 1000")

    def take_round(_):
        for side, loader in loaders.items():
            start = time.perf_counter()
            seen = sum(len(labels) for _, labels in loader)
            seconds = time.perf_counter() - start
            if seen != expected:
                sys.exit(f"webdataset_loader: an epoch of {seen}")
            rounds.print_sample(side, seconds, seen)

    rounds.serve_rounds(take_round)


if __name__ == "__main__":
    main()
