# SPDX-License-Identifier: Apache-2.0
"""Checks of the public headers.

    check.py alone HEADER ...   each one compiles on its own, with names that system headers like to define poisoned
    check.py changed            the same for those that differ from the last commit's parent, or are not committed
    check.py umbrella           saturate.hpp reaches every public header; a folder's umbrella, everything in its folder
    check.py spdx               every header starts with its licence line and has `#pragma once`
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
INCLUDE = ROOT / "include"
# Macros of <complex.h>, <termios.h>, <sys/sysmacros.h>, X11, Windows and of people's own debug builds.
POISON = """I B0 major minor unix linux small near far interface None Status Success Bool Always True False Unsorted
Above Below Complex DEBUG TRACE VERIFY EXPECT ENSURE UNUSED FORCE_INLINE LIKELY UNLIKELY""".split()


def public_headers():
    """All but those in detail/, which are no one's entry point, as paths relative to include/."""
    found = (path.relative_to(INCLUDE) for path in INCLUDE.rglob("*.hpp"))
    return sorted(path for path in found if "detail" not in path.parts)


def includes_of(path):
    """(ours, others): headers of saturate, relative to include/, and the rest in <...>, in order."""
    ours, others = [], []
    for quoted, angled in re.findall(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)', path.read_text(), re.M):
        name = quoted or angled
        beside = path.parent / name
        if name.startswith("saturate/"):
            ours.append(pathlib.Path(name))
        elif quoted and beside.exists():
            ours.append(beside.resolve().relative_to(INCLUDE))
        else:
            others.append(name)
    return ours, others


def reached_from(header):
    """Every header of saturate that `header` brings with it, itself included, and every foreign one."""
    ours, others, queue = set(), [], [pathlib.Path(header)]
    while queue:
        current = queue.pop()
        if current in ours or not (INCLUDE / current).exists():
            continue
        ours.add(current)
        mine, foreign = includes_of(INCLUDE / current)
        queue.extend(mine)
        others.extend(name for name in foreign if name not in others)
    return ours, others


def probe(header):
    """A translation unit with `header` alone. Foreign headers come first: they are not ours to poison."""
    lines = [f"#include <{name}>" for name in reached_from(header)[1]]
    for name in POISON:
        lines += [f"#undef {name}", f"#define {name} @poisoned: some system header defines a macro of this name"]
    # Twice: a header without an include guard shows.
    return "\n".join([*lines, f'#include "{header}"', f'#include "{header}"', ""])


def compiles_alone(header, options):
    flags = [flag for flag in pathlib.Path(options.flags).read_text().split("\n") if flag]
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder, "alone.cpp")
        source.write_text(probe(header))
        command = [options.compiler, *flags, "-Wall", "-Wextra", "-Werror", "-fsyntax-only", str(source)]
        run = subprocess.run(command, capture_output=True, text=True)
    print(f"{header}: {'compiles alone' if run.returncode == 0 else 'does not compile alone'}", flush=True)
    if run.returncode != 0:
        print(run.stderr[:4000])
    return run.returncode == 0


def alone(headers, options):
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        return all(list(pool.map(lambda header: compiles_alone(header, options), headers)))


def git(*arguments):
    run = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
    return run.stdout.split("\n") if run.returncode == 0 else None


def changed_headers():
    """None when git cannot tell: no git here, no repository, or a clone without the parent."""
    try:
        tracked = git("diff", "--name-only", "HEAD~1", "--", "include")
        if tracked is None:
            return None
        names = tracked + (git("ls-files", "--others", "--exclude-standard", "--", "include") or [])
    except FileNotFoundError:
        return None
    paths = {pathlib.Path(name).relative_to("include") for name in names if name}
    return [header for header in public_headers() if header in paths]


def changed(options):
    headers = changed_headers()
    if headers is None:
        print("git does not tell what changed; `scripts/test.sh --full` checks every header")
        return True
    left = headers[options.limit:]
    if left:
        print(f"{len(headers)} headers changed: the first {options.limit} are checked here, "
              "`scripts/test.sh --full` checks every one")
    if not headers:
        print("no header changed")
    return alone(headers[:options.limit], options)


def umbrella():
    headers = public_headers()
    umbrellas = {"saturate/saturate.hpp": headers}
    for folder in sorted(path for path in (INCLUDE / "saturate").iterdir() if path.is_dir()):
        inside = [header for header in headers if header.parts[1] == folder.name]
        for name in (f"saturate/{folder.name}.hpp", f"saturate/{folder.name}/{folder.name}.hpp"):
            path = INCLUDE / name
            if path.exists() and "umbrella" in path.read_text()[:600].lower():
                umbrellas[name] = inside
    good = True
    for name, wanted in umbrellas.items():
        if not (INCLUDE / name).exists():
            print(f"include/{name} is missing")
            good = False
            continue
        missing = [header for header in wanted if header not in reached_from(name)[0]]
        for header in missing:
            print(f"{name} does not bring {header}")
        good = good and not missing
    return good


def spdx():
    good = True
    for path in sorted([*INCLUDE.rglob("*.hpp"), *INCLUDE.rglob("*.cuh")]):
        text = path.read_text()
        name = path.relative_to(ROOT)
        if not text.startswith("// SPDX-License-Identifier: Apache-2.0\n"):
            print(f"{name}: the first line is not the SPDX line")
            good = False
        if "#pragma once" not in text:
            print(f"{name}: no '#pragma once'")
            good = False
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("check", choices=["alone", "changed", "umbrella", "spdx"])
    parser.add_argument("headers", nargs="*", help="relative to include/")
    parser.add_argument("--compiler", default="c++")
    parser.add_argument("--flags", help="a file with one compiler flag a line")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--limit", type=int, default=8, help="at most so many headers in 'changed'")
    options = parser.parse_args()
    checks = {"alone": lambda: alone(options.headers, options), "changed": lambda: changed(options),
              "umbrella": umbrella, "spdx": spdx}
    sys.exit(not checks[options.check]())


if __name__ == "__main__":
    main()
