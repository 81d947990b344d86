# SPDX-License-Identifier: Apache-2.0
"""Writes the images beside itself, and for each that can be decoded NAME.rgb: its pixels, 3 bytes each, row by row.

    python make_fixtures.py        with numpy and Pillow

JPEGs are Pillow's; PNGs are written by hand, because Pillow makes neither interlaced ones nor every kind of 16 bits."""

import io
import pathlib
import struct
import zlib

import numpy as np
from PIL import Image

HERE = pathlib.Path(__file__).parent
RANDOM = np.random.default_rng(7)


def photo(width, height):
    y, x = np.mgrid[0:height, 0:width]
    waves = [np.sin(x / 5.0 + y / 9.0), np.cos(x / 7.0 - y / 4.0), np.sin((x * y) / 90.0)]
    values = np.stack([127 + 90 * wave for wave in waves], axis=-1) + RANDOM.normal(0, 8, (height, width, 3))
    values[(x - width / 3) ** 2 + (y - height / 2) ** 2 < height * 2] = (220, 40, 30)
    return values.clip(0, 255).astype(np.uint8)


def save(name, data, pixels=None):
    (HERE / name).write_bytes(data)
    if pixels is not None:
        (HERE / name).with_suffix(".rgb").write_bytes(np.ascontiguousarray(pixels, dtype=np.uint8).tobytes())


def jpeg(image, **options):
    out = io.BytesIO()
    image.save(out, "JPEG", **options)
    return out.getvalue()


def jpegs():
    image = Image.fromarray(photo(45, 35))
    files = {
        "baseline_444": jpeg(image, quality=92, subsampling="4:4:4"),
        "baseline_422": jpeg(image, quality=85, subsampling="4:2:2"),
        "baseline_420": jpeg(image, quality=90, subsampling="4:2:0"),
        "progressive_420": jpeg(image, quality=90, subsampling="4:2:0", progressive=True),
        "restart_420": jpeg(image, quality=90, subsampling="4:2:0", restart_marker_blocks=2),
        "rgb_444": jpeg(image, quality=90, keep_rgb=True),
        "cmyk": jpeg(image.convert("CMYK"), quality=90),
        "grey": jpeg(image.convert("L"), quality=90),
    }
    for name, data in files.items():
        save(f"{name}.jpg", data, np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))
    data = files["baseline_420"]
    save("truncated.jpg", data[: len(data) * 6 // 10])
    save("truncated_progressive.jpg", files["progressive_420"][: len(files["progressive_420"]) * 6 // 10])
    save("cut_end.jpg", data[: len(data) * 95 // 100])
    save("no_end_mark.jpg", data[:-2])
    save("trailing.jpg", data + b"\r\nbytes that some program left", np.asarray(Image.open(io.BytesIO(data))))
    middle = len(data) * 2 // 3
    save("damaged.jpg", data[:middle] + bytes(RANDOM.integers(0, 255, 60, dtype=np.uint8)) + data[middle + 60 :])
    frame = data.index(b"\xff\xc0")
    save("huge.jpg", data[: frame + 5] + struct.pack(">HH", 65000, 65000) + data[frame + 9 :])


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(pixels, kind, bits, extra=(), interlaced=False, size=None):
    """`pixels`: [height, width, values] of uint8, or of uint16 for 16 bits; bits below 8: [height, width, 1]."""
    height, width, _ = pixels.shape

    def lines(part):
        if part.shape[0] == 0 or part.shape[1] == 0:
            return b""
        if bits < 8:
            split = (part[:, :, 0, None] >> np.arange(bits - 1, -1, -1)) & 1
            rows = np.packbits(split.reshape(part.shape[0], -1).astype(np.uint8), axis=1)
        else:
            rows = part.astype(">u2" if bits == 16 else np.uint8).reshape(part.shape[0], -1)
        return b"".join(b"\0" + row.tobytes() for row in rows)

    passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
    if interlaced:
        body = b"".join(lines(pixels[y::dy, x::dx]) for x, y, dx, dy in passes)
    else:
        body = lines(pixels)
    head = struct.pack(">IIBBBBB", *(size or (width, height)), bits, kind, 0, 0, int(interlaced))
    chunks = [chunk(b"IHDR", head), *extra, chunk(b"IDAT", zlib.compress(body)), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def pngs():
    rgb = photo(23, 17)
    grey = rgb[:, :, :1]
    alpha = RANDOM.integers(0, 256, grey.shape, dtype=np.uint8)
    low = RANDOM.integers(0, 256, rgb.shape, dtype=np.uint16)
    palette = RANDOM.integers(0, 256, (16, 3), dtype=np.uint8)
    index = grey >> 4
    three = np.repeat(grey, 3, axis=2)
    colors = chunk(b"PLTE", palette.tobytes())
    gamma = chunk(b"gAMA", struct.pack(">I", 100000))

    save("rgb.png", png(rgb, 2, 8), rgb)
    save("gamma.png", png(rgb, 2, 8, [gamma]), rgb)
    save("interlaced.png", png(rgb, 2, 8, interlaced=True), rgb)
    save("rgb16.png", png(rgb.astype(np.uint16) * 256 + low, 2, 16), rgb)
    save("rgba.png", png(np.concatenate([rgb, alpha], axis=2), 6, 8), rgb)
    save("rgb_key.png", png(rgb, 2, 8, [chunk(b"tRNS", struct.pack(">HHH", *map(int, rgb[3, 4])))]), rgb)
    save("grey_png.png", png(grey, 0, 8), three)
    save("grey16.png", png(grey.astype(np.uint16) * 256 + low[:, :, :1], 0, 16), three)
    save("grey_alpha.png", png(np.concatenate([grey, alpha], axis=2), 4, 8), three)
    save("grey1.png", png(grey >> 7, 0, 1), np.repeat((grey >> 7) * 255, 3, axis=2))
    save("grey4.png", png(index, 0, 4), np.repeat(index * 17, 3, axis=2))
    save("palette.png", png(index, 3, 8, [colors]), palette[index[:, :, 0]])
    save("palette4.png", png(index, 3, 4, [colors], interlaced=True), palette[index[:, :, 0]])
    save("palette_key.png", png(index, 3, 8, [colors, chunk(b"tRNS", bytes(range(16)))]), palette[index[:, :, 0]])
    data = png(rgb, 2, 8)
    save("truncated.png", data[: len(data) * 6 // 10])
    save("cut_end.png", data[:-14])
    damaged = bytearray(data)
    damaged[len(data) // 2] ^= 0x55
    save("damaged.png", bytes(damaged))
    save("huge.png", png(rgb, 2, 8, size=(2**30, 2**30)))
    save("promises.png", png(rgb, 2, 8, size=(16000, 16000)))


jpegs()
pngs()
