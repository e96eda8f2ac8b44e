#!/usr/bin/env python3
"""Four micro-batches learn what one batch four times as large learns, in both modes; only mode `local` holds sums.

usage: accumulation_test.py ACCUMULATION
"""
import re
import sys

import example_runs

TOLERANCE = 1e-5  # sums of losses and gradients are formed in another order


def main(program):
    example_runs.check_form(program)
    for ranks in [1, 2, 3]:
        text = "\n".join(example_runs.lines_of(program, "--ranks", ranks))
        differences = [float(value) for value in re.findall(r"largest difference of a loss (\S+)", text)]
        assert len(differences) == 2 and 0 <= max(differences) < TOLERANCE, differences
        runs = re.findall(r"(\d+) x +\d+ rows, (\w+) +loss (\S+) to (\S+) .* (\d+)$", text, re.MULTILINE)
        assert [run[:2] for run in runs] == [("1", "automatic"), ("4", "reduced"), ("4", "local")], runs
        assert all(float(last) < 0.01 < 0.1 < float(first) for _, _, first, last, _ in runs), runs
        held = [int(run[4]) for run in runs]
        assert held[0] == held[1] == 0 < held[2], held
        print(f"{ranks} ranks: losses differ by {max(differences)} at most")


if __name__ == "__main__":
    main(sys.argv[1])
