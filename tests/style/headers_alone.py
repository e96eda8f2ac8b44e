#!/usr/bin/env python3
"""Each public header compiles alone, with the project's warnings as errors, and may be included twice.

usage: headers_alone.py ROOT K/N [CHANGED...] -- COMPILER...    prints each failure and exits with 1 when there is one
Of the headers that have to be compiled it takes every N-th, beginning with the K-th, and those that have changed.

A header that some source of the library includes before anything else is compiled alone wherever sources are compiled one by
one (-Dunity=off, as CI's clang does), so only the others are compiled here. Each header of torch must be one of the first
kind, because no other compiler has libtorch for certain.
"""
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys

INCLUDE_FOLDERS = ["include", "nn/include", "vision/include", "trainer/include", "torch/include"]
SOURCE_FOLDERS = ["src", "nn/src", "vision/src", "trainer/src", "torch/src"]
FIRST_INCLUDE = re.compile(r'^#include ["<]([^">]+)[">]', re.MULTILINE)
FLAGS = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror"]


def public_headers(root):
    for folder in INCLUDE_FOLDERS:
        for path in sorted((root / folder).rglob("*.hpp")):
            yield path.relative_to(root / folder).as_posix()


def included_first(root):
    """The headers with which a source of the library begins."""
    for folder in SOURCE_FOLDERS:
        for path in (root / folder).rglob("*.cpp"):
            first = FIRST_INCLUDE.search(path.read_text(encoding="utf-8"))
            if first:
                yield first.group(1)


def unguarded(root, header):
    texts = [(root / folder / header) for folder in INCLUDE_FOLDERS]
    text = next(path for path in texts if path.is_file()).read_text(encoding="utf-8")
    return "" if "\n#pragma once\n" in text else f"{header} has no #pragma once"


def failure(compiler, root, header):
    """The compiler's complaint about the header, or an empty string."""
    command = [compiler, *FLAGS, *(f"-I{root / folder}" for folder in INCLUDE_FOLDERS), "-xc++", "-"]
    unit = f'#include "{header}"\n'
    done = subprocess.run(command, input=unit, capture_output=True, text=True, check=False)
    return f"{header} does not compile alone:\n{done.stderr}" if done.returncode else ""


def main():
    root, part, *changed, separator, compiler = sys.argv[1:]
    assert separator == "--", __doc__
    root = pathlib.Path(root)
    first, step = map(int, part.split("/"))
    headers = list(public_headers(root))
    proven = set(included_first(root)) & set(headers)
    left = [header for header in headers if header not in proven]
    failures = [text for header in headers if (text := unguarded(root, header))]
    failures += [f"{header} begins no source of torch" for header in left if header.startswith("tessera/torch/")]
    left = [header for place, header in enumerate(header for header in left if not header.startswith("tessera/torch/"))
            if place % step == first - 1 or any(path.endswith(f"include/{header}") for path in changed)]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        failures += [text for text in pool.map(lambda header: failure(compiler, root, header), left) if text]
    print(*failures, f"of {len(headers)} headers {len(proven)} begin a source; compiled alone: {len(left)}", sep="\n")
    return 1 if failures or not headers or not proven else 0


if __name__ == "__main__":
    sys.exit(main())
