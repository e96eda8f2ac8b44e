#!/usr/bin/env python3
"""The example of the guide's first page: under 80 lines, and it learns its sine on any number of ranks.

usage: wrap_your_module_test.py WRAP_YOUR_MODULE
"""
import pathlib
import re
import sys

import trainer_runs

SOURCE = pathlib.Path(__file__).parents[2] / "examples" / "wrap_your_module.cpp"


def main(program):
    lines = SOURCE.read_text(encoding="utf-8").count("\n")
    assert lines < 80, f"{SOURCE} has {lines} lines"
    for ranks in [1, 3, 4]:
        done = trainer_runs.run(program, "--ranks", ranks)
        assert done.returncode == 0 and not done.stderr, done.stderr
        losses = [float(text) for text in re.findall(r"loss (\S+)", done.stdout)]
        print(f"{ranks} ranks: loss {losses[0]} to {losses[-1]}")
        assert max(losses[1:]) < 0.05, "an untrained model's loss is about 0.5"
    assert trainer_runs.run(program, "--surplus").returncode == 2


if __name__ == "__main__":
    main(sys.argv[1])
