#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the tars beside this file: one set of files, written by GNU tar, Python's tarfile and libarchive in each of
their formats, and members that shards may not have. Run it only to change them; the tests read what is checked in."""

import ctypes
import ctypes.util
import io
import os
import pathlib
import subprocess
import tarfile
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
PIXELS = bytes(range(256)) * 3
LONG = "l" * 120 + "/" + "m" * 90 + ".json"  # fits into ustar's two fields, not into v7's one
FILES = {
    "a.jpg": PIXELS,
    "a.cls": b"3",
    ".hidden.jpg": b"hidden",
    "nodot": b"no dot",
    "__meta__/info.json": b"{}",
    "dir/22.0/1.1.png": b"png",
    "dir/22.0/1.TXT": b"text",
    "empty.bin": b"",
    "empty.txt": b"x",
    LONG: b"[1]",
    "naïve-日本.txt": "日本".encode(),
    "z.jpg": PIXELS[:512],
}


def sparse_files(folder):
    with open(folder / "hole.bin", "wb") as file:
        file.truncate(1 << 20)
    with open(folder / "part.bin", "wb") as file:
        file.seek(1 << 16)
        file.write(b"end")


def gnu_tar(folder, name, form, names, *options):
    command = ["tar", f"--format={form}", "--blocking-factor=1", "--mtime=@0", "--owner=0", "--group=0", "--no-recursion",
               "--numeric-owner", "--mode=0644", *options, "-cf", HERE / name, "--", *names]
    subprocess.run(command, cwd=folder, check=True)


def python_tar(name, form):
    tarfile.RECORDSIZE = tarfile.BLOCKSIZE  # no padding to 10 kB
    with tarfile.open(HERE / name, "w", format=form) as tar:
        for path, data in FILES.items():
            info = tarfile.TarInfo(path)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
            if path == "a.cls":
                for link, kind in ("soft.jpg", tarfile.SYMTYPE), ("hard.jpg", tarfile.LNKTYPE):
                    info = tarfile.TarInfo(link)
                    info.type, info.linkname = kind, "a.jpg"
                    tar.addfile(info)


def libarchive_tar(name, form, names):
    la = ctypes.CDLL(ctypes.util.find_library("archive"))
    for function in "archive_write_new", "archive_entry_new":
        getattr(la, function).restype = ctypes.c_void_p
    pointer, size = ctypes.c_void_p, ctypes.c_int64
    la.archive_entry_set_size.argtypes = [pointer, size]
    la.archive_write_data.argtypes = [pointer, ctypes.c_char_p, ctypes.c_size_t]
    la.archive_write_data.restype = ctypes.c_ssize_t
    archive = pointer(la.archive_write_new())
    assert la.archive_write_set_format_by_name(archive, form.encode()) == 0
    la.archive_write_set_bytes_in_last_block(archive, 512)
    assert la.archive_write_open_filename(archive, str(HERE / name).encode()) == 0
    for path in names:
        entry = pointer(la.archive_entry_new())
        la.archive_entry_set_pathname(entry, path.encode())
        la.archive_entry_set_size(entry, len(FILES[path]))
        la.archive_entry_set_filetype(entry, 0o100000)
        la.archive_entry_set_perm(entry, 0o644)
        assert la.archive_write_header(archive, entry) in (0, -20), path
        assert la.archive_write_data(archive, FILES[path], len(FILES[path])) == len(FILES[path])
        la.archive_entry_free(entry)
    assert la.archive_write_close(archive) == 0


def huge_tar(name):
    """A good sample, then a member whose size needs the base-256 form: 2^40 bytes, of which three are there."""
    info = tarfile.TarInfo("b.jpg")
    info.size = 1 << 40
    good = tarfile.TarInfo("a.jpg")
    good.size = 3
    with open(HERE / name, "wb") as file:
        file.write(good.tobuf(tarfile.GNU_FORMAT) + b"abc".ljust(512, b"\0"))
        file.write(info.tobuf(tarfile.GNU_FORMAT) + b"abc")


def base256_tar(name):
    """Small sizes, written in the base-256 form all the same."""
    with open(HERE / name, "wb") as file:
        for path, data in ("a.jpg", PIXELS), ("b.jpg", b"b"):
            info = tarfile.TarInfo(path)
            info.size = len(data)
            header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
            header[124:136] = b"\x80" + len(data).to_bytes(11, "big")
            header[148:156] = b" " * 8
            header[148:156] = b"%06o\0 " % sum(header)
            file.write(bytes(header) + data.ljust(-(-len(data) // 512) * 512, b"\0"))
        file.write(bytes(1024))


def main():
    os.environ["LC_ALL"] = "C.UTF-8"
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for path, data in FILES.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
        os.symlink("a.jpg", folder / "soft.jpg")
        os.link(folder / "a.jpg", folder / "hard.jpg")
        names = list(FILES)
        with_links = ["a.jpg", "a.cls", "soft.jpg", "hard.jpg", "dir", *names[2:]]
        short = [path for path in names if len(path) < 100]
        for form in "gnu", "oldgnu", "ustar":
            gnu_tar(folder, f"gnu_tar-{form}.tar", form, with_links)
        gnu_tar(folder, "gnu_tar-pax.tar", "pax", with_links,
                "--pax-option=delete=atime,delete=ctime,exthdr.name=%d/PaxHeaders/%f")
        gnu_tar(folder, "gnu_tar-v7.tar", "v7", [path for path in with_links if len(path) < 100])
        sparse_files(folder)
        gnu_tar(folder, "sparse-gnu.tar", "gnu", ["a.jpg", "hole.bin"], "--sparse")
        for version in "0.0", "0.1", "1.0":
            gnu_tar(folder, f"sparse-pax-{version}.tar", "pax", ["a.jpg", "part.bin"], "--sparse",
                    f"--sparse-version={version}")
    for form in "GNU", "PAX", "USTAR":
        python_tar(f"python-{form.lower()}.tar", getattr(tarfile, f"{form}_FORMAT"))
    for form in "gnutar", "pax", "paxr", "ustar":
        libarchive_tar(f"libarchive-{form}.tar", form, names)
    libarchive_tar("libarchive-v7tar.tar", "v7tar", short)
    huge_tar("huge.tar")
    base256_tar("base256.tar")


if __name__ == "__main__":
    main()
