#!/usr/bin/env python3
"""Checkpointing holds one block's inner activations instead of all, opens a window more per block, and changes no bit.

usage: activation_checkpointing_test.py ACTIVATION_CHECKPOINTING
"""
import re
import sys

import example_runs

BLOCKS, ROWS, WIDTH, INNER = 8, 16, 24, 96
INPUTS = 4 * (BLOCKS + 1) * ROWS * WIDTH  # bytes that both keep


def main(program):
    example_runs.check_form(program)
    for ranks in [1, 3, 4]:
        text = "\n".join(example_runs.lines_of(program, "--ranks", ranks))
        runs = re.findall(r"activations +(\d+) bytes  windows per step (\d+)  (loss (\S+) to (\S+))$", text, re.MULTILINE)
        assert [int(run[0]) - INPUTS for run in runs] == [4 * BLOCKS * ROWS * INNER, 4 * ROWS * INNER], text
        assert [int(run[1]) for run in runs] == [2 * BLOCKS, 3 * BLOCKS], text
        assert runs[0][2] == runs[1][2] and float(runs[0][4]) < 0.5 * float(runs[0][3]), text
        assert "losses and weights have the same bits: yes" in text, text
        print(f"{ranks} ranks: {runs[0][0]} and {runs[1][0]} bytes, {runs[0][2]}")


if __name__ == "__main__":
    main(sys.argv[1])
