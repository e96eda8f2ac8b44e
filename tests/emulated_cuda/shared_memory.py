#!/usr/bin/env python3
"""A kernel's source as the emulated device takes it: each array in static shared memory becomes a part of its block's own, which
emulated::static_part() gives. Headers that have such arrays are put in where they are included. Lines keep their numbers.

usage: shared_memory.py SOURCE OUTPUT HEADER...
"""
import pathlib
import re
import sys

ARRAY = re.compile(r"(?<!extern )__shared__ (?P<type>[\w:<>]+(?: [\w:<>]+)*) (?P<name>\w+)(?P<extents>(?:\[[^\[\]]+\])*);")


def taken(path, headers):
    text = ARRAY.sub(r"auto& \g<name> = ::emulated::static_part<\g<type>\g<extents>>([] {});", path.read_text(encoding="utf-8"))
    lines = [f'#line 1 "{path}"']
    for number, line in enumerate(text.splitlines(), 1):
        included = re.match(r'#include ".*?([\w.]+)"', line)
        if included and included.group(1) in headers:
            lines += taken(headers[included.group(1)], headers) + [f'#line {number + 1} "{path}"']
        else:
            lines.append("" if line == "#pragma once" else line)
    return lines


if __name__ == "__main__":
    source, output, *shared = map(pathlib.Path, sys.argv[1:])
    output.write_text("\n".join(taken(source, {path.name: path for path in shared})) + "\n", encoding="utf-8")
