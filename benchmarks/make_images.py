# SPDX-License-Identifier: Apache-2.0
"""Writes the images that the data benchmarks read, once: make_images.py FOLDER

FOLDER/64    Fashion-MNIST's test images, 10,000, enlarged to 64 x 64
FOLDER/256   4,000 pictures of 256 x 256 made of smooth noise, shapes and grain: JPEGs as large as photos are

Each as tar shards (shards/000.tar ...) for WebDataset and saturate and as MDS (mds/) for mosaicml-streaming, with the
same JPEG bytes (quality 90) and labels. Needs the environment of peers/requirements-data.txt."""

import gzip
import io
import pathlib
import shutil
import sys
import tarfile

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

FASHION_MNIST = pathlib.Path("/usr/share/datasets/fashion-mnist")
QUALITY = 90


def jpeg(image):
    out = io.BytesIO()
    image.save(out, format="JPEG", quality=QUALITY)
    return out.getvalue()


def fashion_mnist():
    """10,000 pairs of JPEG bytes and label."""
    with gzip.open(FASHION_MNIST / "t10k-images-idx3-ubyte.gz") as file:
        images = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 28, 28)
    with gzip.open(FASHION_MNIST / "t10k-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read(), np.uint8, offset=8)
    for image, label in zip(images, labels):
        yield jpeg(Image.fromarray(image).resize((64, 64), Image.BICUBIC).convert("RGB")), int(label)


def photo(random, size=256):
    """Light and colour that change slowly, details at every scale, things with edges in front, grain over all."""
    canvas = np.zeros((size, size, 3), np.float32)
    for cells, strength in ((3, 70), (8, 30), (24, 14), (64, 9)):
        noise = random.normal(0, 1, (cells, cells, 3)).astype(np.float32)
        noise = 0.75 * noise.mean(axis=2, keepdims=True) + 0.25 * noise  # colour changes less than light
        planes = [Image.fromarray(noise[..., c]).resize((size, size), Image.BICUBIC) for c in range(3)]
        canvas += strength * np.stack([np.asarray(plane) for plane in planes], axis=2)
    image = Image.fromarray(np.clip(canvas + random.uniform(90, 160), 0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    for _ in range(random.integers(4, 14)):
        x, y = random.uniform(0, size, 2)
        w, h = random.uniform(size / 20, size / 3, 2)
        colour = tuple(int(value) for value in random.uniform(20, 235, 3))
        shape = draw.ellipse if random.random() < 0.5 else draw.rectangle
        shape([x - w / 2, y - h / 2, x + w / 2, y + h / 2], fill=colour)
    pixels = np.asarray(image.filter(ImageFilter.GaussianBlur(0.6)), np.float32)
    pixels = pixels + random.normal(0, random.uniform(3, 9), (size, size, 1))
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def photos(count=4000):
    random = np.random.default_rng(0)
    for _ in range(count):
        yield jpeg(photo(random)), int(random.integers(0, 1000))


def write_tars(folder, samples, per_shard):
    folder.mkdir(parents=True)
    for first in range(0, len(samples), per_shard):
        with tarfile.open(folder / f"{first // per_shard:03}.tar", "w") as tar:
            for n, (image, label) in enumerate(samples[first : first + per_shard], first):
                for extension, content in (("jpg", image), ("cls", str(label).encode())):
                    member = tarfile.TarInfo(f"{n:06}.{extension}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))


def write_mds(folder, samples):
    from streaming import MDSWriter

    with MDSWriter(out=str(folder), columns={"image": "bytes", "label": "int"}) as writer:
        for image, label in samples:
            writer.write({"image": image, "label": label})


def make(folder, samples, per_shard):
    """All or nothing: what was left half written is thrown away and made again."""
    if folder.exists():
        return
    samples = list(samples)
    half = folder.with_name(folder.name + ".half")
    shutil.rmtree(half, ignore_errors=True)
    write_tars(half / "shards", samples, per_shard)
    write_mds(half / "mds", samples)
    half.rename(folder)
    sizes = [len(image) for image, _ in samples]
    print(f"{folder}: {len(samples)} images, JPEGs of {np.percentile(sizes, 10) / 1000:.1f} to "
          f"{np.percentile(sizes, 90) / 1000:.1f} kB (10th and 90th percentile)", file=sys.stderr)


def main():
    root = pathlib.Path(sys.argv[1])
    root.mkdir(parents=True, exist_ok=True)
    make(root / "64", fashion_mnist(), per_shard=1000)
    make(root / "256", photos(), per_shard=500)


if __name__ == "__main__":
    main()
