# SPDX-License-Identifier: Apache-2.0
"""Compiles one misuse and requires that it fails in one sentence.

    run.py FILE --flags FLAGS_FILE [--pch FILE] COMPILER...

Every `// expect: fragment` of FILE must stand in the first error line, and there must be exactly one error, with each
compiler: a second one would bury the sentence that helps. --pch: what the first compiler, Clang, has precompiled.
"""

import argparse
import os
import re
import subprocess
import sys

ERROR = re.compile(r"\b(?:fatal )?error: ")


def problems(compiler, path, flags, fragments):
    command = [compiler, *flags, "-fsyntax-only", "-fdiagnostics-color=never", path]
    run = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    errors = [line for line in run.stderr.splitlines() if ERROR.search(line)]
    if run.returncode == 0:
        return ["it compiles"], run.stderr
    if not errors:
        return ["it fails without an error line"], run.stderr
    found = [f"the first error does not say {f!r}" for f in fragments if f not in errors[0]]
    if len(errors) > 1:
        found.append(f"{len(errors)} errors instead of one")
    return found, run.stderr


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--flags", required=True, help="a file with one compiler flag a line")
    parser.add_argument("--pch")
    parser.add_argument("compilers", nargs="+")
    options = parser.parse_args()
    with open(options.file) as source:
        fragments = re.findall(r"^// expect: (.+?)\s*$", source.read(), re.M)
    if not fragments:
        sys.exit(f"{options.file}: no '// expect: ' line")
    with open(options.flags) as lines:
        flags = [line for line in lines.read().split("\n") if line]
    failed = False
    for compiler in options.compilers:
        precompiled = compiler == options.compilers[0] and options.pch
        more = ["-O0", "-DNDEBUG", "-fPIC", "-Xclang", "-include-pch", "-Xclang", options.pch] if precompiled else []
        found, output = problems(compiler, options.file, flags + more, fragments)
        print(f"{compiler}: {'; '.join(found) or 'as expected'}")
        if found:
            failed = True
            print(output)
    sys.exit(failed)


if __name__ == "__main__":
    main()
