#!/usr/bin/env python3
"""Models that ask more of the runtime than a chain: the same weights under every strategy, and they learn.

usage: models_test.py PROGRAM
"""
import pathlib
import re
import sys

import example_runs

STRATEGIES = ["ddp", "zero1", "zero2", "fsdp"]


def check_learned(name, line, ranks):
    if name == "running_statistics":
        right, differed = int(re.search(r"(\d+) of 6 right", line)[1]), float(re.search(r"differed by (\S+)", line)[1])
        assert right == 6, line
        assert (differed > 0) == (ranks > 1), f"every rank has statistics of its own until they are synchronised: {line}"
    else:
        for first, last in re.findall(r" (\d\S+), then (\d[\d.]+)", line):
            assert float(last) < 0.5 * float(first), line
    if name == "two_models":
        slope, gradient = map(float, re.search(r"slope (\S+), gradient (\S+)", line).groups())
        assert abs(slope) > 0.01 and abs(slope - gradient) < 0.05 * abs(slope), line


def main(program):
    example_runs.check_form(program, 119)
    name = pathlib.Path(program).name
    for ranks in [1, 2, 3, 4]:
        lines = example_runs.lines_of(program, "--ranks", ranks)
        assert [line.split()[0] for line in lines] == STRATEGIES, lines
        weights = {re.search(r"weights (\w{16}) ", line)[1] for line in lines}
        assert len(weights) == 1, f"{ranks} ranks: strategies differ: {lines}"
        check_learned(name, lines[-1], ranks)
        print(f"{ranks} ranks: {lines[-1]}")


if __name__ == "__main__":
    main(sys.argv[1])
