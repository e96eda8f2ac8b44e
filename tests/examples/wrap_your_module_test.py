#!/usr/bin/env python3
"""The example of the guide's first page: under 80 lines, and it learns its sine on any number of ranks.

usage: wrap_your_module_test.py WRAP_YOUR_MODULE
"""
import re
import sys

import example_runs


def main(program):
    example_runs.check_form(program, most_lines=79)
    for ranks in [1, 3, 4]:
        lines = example_runs.lines_of(program, "--ranks", ranks)
        losses = [float(text) for text in re.findall(r"loss (\S+)", "\n".join(lines))]
        print(f"{ranks} ranks: loss {losses[0]} to {losses[-1]}")
        assert max(losses[1:]) < 0.05, "an untrained model's loss is about 0.5"


if __name__ == "__main__":
    main(sys.argv[1])
