# SPDX-License-Identifier: Apache-2.0
"""Writes images.txt beside itself: what torch makes of tests/unit/data/images/rgb.rgb (17 rows of 23 pixels).

    .venv/bin/python tests/oracle/make_images.py

One line a case: its name, then the values, [C, H, W]."""

import pathlib

import torch

HERE = pathlib.Path(__file__).parent
PIXELS = HERE.parent / "unit/data/images/rgb.rgb"
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def image():
    return torch.tensor(list(PIXELS.read_bytes()), dtype=torch.float32).view(17, 23, 3).permute(2, 0, 1)


def resize(pixels, height, width):
    """In 0..255; in float64, so that only the library's own rounding shows."""
    options = dict(mode="bilinear", antialias=True, align_corners=False)
    return torch.nn.functional.interpolate(pixels.double()[None], (height, width), **options)[0]


def crop(pixels, y, x, height, width):
    return pixels[:, y : y + height, x : x + width]


def resize_shorter_then_center(pixels, shorter, height, width):
    """torchvision's Resize(shorter) and CenterCrop((height, width))."""
    rows, columns = pixels.shape[1:]
    longer = int(shorter * max(rows, columns) / min(rows, columns))
    size = (shorter, longer) if rows <= columns else (longer, shorter)
    y, x = (int(round((extent - wanted) / 2.0)) for extent, wanted in zip(size, (height, width)))
    return crop(resize(pixels, *size), y, x, height, width)


def normalize(pixels):
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    return pixels.div(255).sub(mean).div(std)


def main():
    pixels = image()
    cases = {
        "down_9_11": resize(pixels, 9, 11),
        "down_2_3": resize(pixels, 2, 3),
        "up_20_30": resize(pixels, 20, 30),
        "mixed_5_31": resize(pixels, 5, 31),
        "shorter_12_center_8_9": resize_shorter_then_center(pixels, 12, 8, 9),
        "shorter_30_center_10_11": resize_shorter_then_center(pixels, 30, 10, 11),
        "crop_2_3_11_9_to_7_8": resize(crop(pixels, 2, 3, 11, 9), 7, 8),
        "crop_6_10_5_12_to_9_4": resize(crop(pixels, 6, 10, 5, 12), 9, 4),
        "normalized_center_6_7": normalize(crop(pixels, 6, 8, 6, 7)),
    }
    lines = [f"{name} {' '.join(f'{v:.9g}' for v in values.flatten().tolist())}\n" for name, values in cases.items()]
    (HERE / "images.txt").write_text(f"# torch {torch.__version__}, written by make_images.py\n" + "".join(lines))


main()
