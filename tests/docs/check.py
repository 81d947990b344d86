# SPDX-License-Identifier: Apache-2.0
"""Checks of the documentation.

    check.py links [ROOT]      every page, heading and file that a Markdown page links to or names in `code` is there,
                               and so is every docs/PAGE.md#heading that a source names (in an error message, a comment)
    check.py snippets [ROOT]   a code block after `<!-- from FILE:begin NAME -->` is what stands in FILE between
                               `// begin NAME` and `// end NAME`; --fix copies it from there
    check.py self              finds the faults planted in a tree of its own
"""

import argparse
import pathlib
import re
import sys
import tempfile
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = ("include", "src", "tests", "examples", "benchmarks", "cmake", "scripts")
ENDINGS = {".hpp", ".cpp", ".cu", ".cuh", ".cmake", ".txt", ".sh", ".py"}
FENCE = re.compile(r"^```.*?^```$", re.M | re.S)
SNIPPET = re.compile(r"<!-- from (\S+?):begin (\S+) -->\n```(\w*)\n(.*?)^```$", re.M | re.S)


def pages(root):
    return sorted([*root.glob("*.md"), *(root / "docs").rglob("*.md")])


def sources(root):
    for folder in SOURCES:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in ENDINGS and path.is_file() and "__pycache__" not in path.parts:
                yield path


def anchors_of(page):
    """The names that GitHub gives a page's headings, and explicit ones."""
    text = FENCE.sub("", page.read_text())
    found = set(re.findall(r'<a (?:id|name)="([^"]+)"', text))
    for heading in re.findall(r"^#+ +(.+?) *$", text, re.M):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        name, n = slug, 0
        while name in found:
            n += 1
            name = f"{slug}-{n}"
        found.add(name)
    return found


def broken(target, base, root):
    """What is wrong with `path#anchor` as seen from the folder `base`; None: nothing."""
    path, _, anchor = target.partition("#")
    page = (base / path).resolve() if path else None
    if page is not None and not page.exists():
        return f"{target}: there is no {path}"
    if anchor and (page is None or page.suffix == ".md") and anchor not in anchors_of(page or base):
        return f"{target}: no heading gives #{anchor}"
    return None


def links(root):
    problems = []
    for page in pages(root):
        where = page.relative_to(root)
        text = FENCE.sub("", page.read_text())
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if re.match(r"[a-z]+:", target):
                continue
            own = target.startswith("#")
            what = broken(target, page if own else page.parent, root)
            problems += [f"{where}: {what}"] if what else []
        for named in re.findall(r"`((?:%s|docs)/[\w./*-]*)`" % "|".join(SOURCES), text):
            if not list(root.glob(named.rstrip("/"))):
                problems.append(f"{where}: `{named}` is not there")
    me = pathlib.Path(__file__).resolve()
    for source in sources(root):
        if source.resolve() == me:
            continue
        # A sentence may be broken over lines of a string or a comment, but never inside the name.
        for target in re.findall(r"docs/[\w-]+\.md(?:#[\w-]+)?", source.read_text(errors="replace")):
            what = broken(target, root, root)
            problems += [f"{source.relative_to(root)}: {what}"] if what else []
    return problems


def region(path, name):
    lines = path.read_text().split("\n")
    marks = [line.strip().removeprefix("// ").removeprefix("# ") for line in lines]
    if marks.count(f"begin {name}") != 1 or marks.count(f"end {name}") != 1:
        return None
    inside = lines[marks.index(f"begin {name}") + 1:marks.index(f"end {name}")]
    return textwrap.dedent("\n".join(inside)).strip("\n") + "\n"


def snippets(root, fix=False):
    problems = []
    for page in pages(root):
        text = page.read_text()

        def check(match, where=page.relative_to(root)):
            file, name, language, shown = match.groups()
            wanted = region(root / file, name) if (root / file).exists() else None
            if wanted is None:
                problems.append(f"{where}: {file} has no single region '{name}'")
            elif wanted != shown and not fix:
                problems.append(f"{where}: the code from {file}:{name} is not what stands there; --fix copies it")
            elif fix:
                return f"<!-- from {file}:begin {name} -->\n```{language}\n{wanted}```"
            return match[0]

        new = SNIPPET.sub(check, text)
        marked, read = text.count("<!-- from "), len(SNIPPET.findall(text))
        if marked != read:
            problems.append(f"{page.relative_to(root)}: {marked - read} marked snippets have no code block after the mark")
        if fix and new != text:
            page.write_text(new)
    return problems


def self_test():
    good = {
        "README.md": "# Top\n[a](docs/a.md#two-words) `examples/x.cpp`\n"
                     "<!-- from examples/x.cpp:begin main -->\n```cpp\nint x;\n```\n",
        "docs/a.md": "# A\n## Two words\n[up](../README.md) [own](#two-words)\n",
        "examples/x.cpp": "// see docs/a.md#two-words\n  // begin main\n  int x;\n  // end main\n",
    }
    faults = [
        (links, "README.md", "docs/a.md#", "docs/b.md#"),
        (links, "README.md", "#two-words", "#three-words"),
        (links, "README.md", "`examples/x.cpp`", "`examples/y.cpp`"),
        (links, "docs/a.md", "[own](#two-words)", "[own](#none)"),
        (links, "docs/a.md", "## Two words", "```\n## Two words\n```"),
        (links, "examples/x.cpp", "#two-words", "#renamed"),
        (snippets, "README.md", "int x;", "int y;"),
        (snippets, "README.md", "```cpp\n", "text\n```cpp\n"),
        (snippets, "examples/x.cpp", "// end main", "// end other"),
    ]
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)

        def write(files):
            for name, text in files.items():
                (root / name).parent.mkdir(exist_ok=True)
                (root / name).write_text(text)

        write(good)
        missed += [f"found in a good tree: {problem}" for check in (links, snippets) for problem in check(root)]
        for check, name, old, new in faults:
            assert old in good[name], (name, old)
            write({**good, name: good[name].replace(old, new)})
            if not check(root):
                missed.append(f"{check.__name__} missed {old!r} -> {new!r} in {name}")
        write({**good, "README.md": good["README.md"].replace("int x;", "int y;")})
        snippets(root, fix=True)
        missed += snippets(root)
    return missed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("check", choices=["links", "snippets", "self"])
    parser.add_argument("root", nargs="?", type=pathlib.Path, default=ROOT)
    parser.add_argument("--fix", action="store_true")
    options = parser.parse_args()
    problems = {"links": lambda: links(options.root), "snippets": lambda: snippets(options.root, options.fix),
                "self": self_test}[options.check]()
    print(*(problems or [f"{options.check}: ok"]), sep="\n")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
