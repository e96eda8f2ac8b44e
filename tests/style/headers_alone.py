#!/usr/bin/env python3
"""Each public header compiles alone, included twice, with the project's warnings as errors.

usage: headers_alone.py ROOT -- COMPILER...    prints each failure and exits with 1 when there is one
"""
import concurrent.futures
import os
import pathlib
import subprocess
import sys

INCLUDE_FOLDERS = ["include", "nn/include"]
FLAGS = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror"]


def public_headers(root):
    for folder in INCLUDE_FOLDERS:
        for path in sorted((root / folder).rglob("*.hpp")):
            yield path.relative_to(root / folder).as_posix()


def failure(compiler, root, header):
    """The compiler's complaint about the header, or an empty string."""
    command = [*compiler, *FLAGS, *(f"-I{root / folder}" for folder in INCLUDE_FOLDERS), "-xc++", "-"]
    unit = f'#include "{header}"\n#include "{header}"\n'
    done = subprocess.run(command, input=unit, capture_output=True, text=True, check=False)
    return f"{header} does not compile alone:\n{done.stderr}" if done.returncode else ""


def main():
    root, separator, *compiler = sys.argv[1:]
    assert separator == "--" and compiler, __doc__
    root = pathlib.Path(root)
    headers = list(public_headers(root))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        failures = [text for text in pool.map(lambda header: failure(compiler, root, header), headers) if text]
    print("\n".join(failures), f"{len(headers) - len(failures)} of {len(headers)} headers compile alone", sep="\n")
    return 1 if failures or not headers else 0


if __name__ == "__main__":
    sys.exit(main())
