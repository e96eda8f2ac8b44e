#!/usr/bin/env python3
"""Norms of the parameters are those of their elements and add up to the step's; noise from a hook is the same everywhere.

usage: inspect_gradients_test.py INSPECT_GRADIENTS
"""
import math
import re
import sys

import example_runs

PARAMETERS = ["hidden.weight", "hidden.bias", "output.weight", "output.bias"]


def main(program):
    example_runs.check_form(program)
    for ranks in [1, 3, 4]:
        lines = example_runs.lines_of(program, "--ranks", ranks)
        norms = dict(re.fullmatch(r"(\S+) +norm (\S+)", line).groups() for line in lines[:4])
        assert list(norms) == PARAMETERS, lines
        total, step = map(float, re.fullmatch(r"all +norm (\S+), the step's (\S+)", lines[4]).groups())
        assert math.isclose(math.hypot(*map(float, norms.values())), step, rel_tol=1e-4), lines
        assert math.isclose(total, step, rel_tol=1e-4) and step > 0.01, lines
        elements = list(map(float, lines[5].split()[1:]))
        assert len(elements) == 16 and math.isclose(math.hypot(*elements), float(norms["hidden.weight"]), rel_tol=1e-2), lines
        assert lines[6:] == ["with noise: other weights, and the same ones with ddp"], lines
        print(f"{ranks} ranks: norm {step}")


if __name__ == "__main__":
    main(sys.argv[1])
