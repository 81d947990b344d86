# SPDX-License-Identifier: Apache-2.0
"""mosaicml-streaming on its own MDS of the images of make_images.py, local and whole, shuffled; collated by batch; as
many workers as WORKERS says (0,1,2), which stay. mosaic_loader.py FOLDER 64|256 WORKERS"""

import os
import pathlib
import sys
import tempfile
import time
import warnings

warnings.filterwarnings("ignore")
import streaming  # noqa: E402
import torch  # noqa: E402

import images  # noqa: E402
import rounds  # noqa: E402


class Images(streaming.StreamingDataset):
    def __init__(self, local, size):
        super().__init__(local=local, shuffle=True, batch_size=images.BATCH_SIZE, num_canonical_nodes=1)
        self.prepare = images.DecodeCropFlip(images.CROPS[size])

    def __getitem__(self, index):
        sample = super().__getitem__(index)
        return self.prepare(sample["image"]), sample["label"]


def make_loader(local, size, workers):
    keep = {"persistent_workers": True, "prefetch_factor": 4} if workers else {}
    return streaming.StreamingDataLoader(Images(local, size), batch_size=images.BATCH_SIZE, num_workers=workers,
                                         collate_fn=images.collate, **keep)


def main():
    folder, size = sys.argv[1], int(sys.argv[2])
    counts = [int(count) for count in sys.argv[3].split(",")]
    expected = {64: 10000, 256: 4000}[size]
    torch.set_num_threads(1)  # workers have one anyway; without workers two threads wait for each other more than they win
    with tempfile.TemporaryDirectory() as links:  # each of its datasets wants a folder of its own
        loaders = {}
        for workers in counts:
            local = os.path.join(links, str(workers))
            os.symlink(pathlib.Path(folder, str(size), "mds").resolve(), local)
            loaders[f"mosaic_{workers}"] = make_loader(local, size, workers)
        rounds.print_info("mosaic", f"mosaicml-streaming {streaming.__version__}, torch {torch.__version__}, simplejpeg, "
                                    f"shuffled")

        def take_round(_):
            for side, loader in loaders.items():
                start = time.perf_counter()
                seen = sum(len(labels) for _, labels in loader)
                seconds = time.perf_counter() - start
                if not expected <= seen < expected + 128:  # it repeats samples to make workers equal
                    sys.exit(f"mosaic_loader: an epoch of {seen}")
                rounds.print_sample(side, seconds, seen)

        rounds.serve_rounds(take_round)


if __name__ == "__main__":
    main()
