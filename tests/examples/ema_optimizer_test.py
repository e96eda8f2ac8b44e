#!/usr/bin/env python3
"""The average of the weights is better than the last of them, and has the same bits with every strategy.

usage: ema_optimizer_test.py EMA_OPTIMIZER
"""
import re
import sys

import example_runs


def main(program):
    example_runs.check_form(program)
    for ranks in [1, 3, 4]:
        first, *others = example_runs.lines_of(program, "--ranks", ranks)
        weights, average = map(float, re.fullmatch(r"error of the weights (\S+), of their average (\S+)", first).groups())
        assert average < 0.01 < weights, first
        assert others == [f"{strategy}: the same bits" for strategy in ["zero1", "zero2", "fsdp"]], others
        print(f"{ranks} ranks: {first}")


if __name__ == "__main__":
    main(sys.argv[1])
