#!/usr/bin/env python3
"""Runs a program of the emulated device under many seeds, which draw the order of blocks, warps and lanes.

usage: seeds_test.py PROGRAM
"""
import os
import subprocess
import sys

SEEDS = range(1, 21)


def main(program):
    for seed in SEEDS:
        environment = os.environ | {"TESSERA_EMULATED_SEED": str(seed), "TESSERA_TEST_MATRIX": "reduced"}
        done = subprocess.run([program], env=environment, capture_output=True, text=True, errors="replace", check=False)
        assert done.returncode == 0, f"seed {seed}: ends with {done.returncode}\n{done.stdout}{done.stderr}"
    print(f"{len(SEEDS)} seeds")


if __name__ == "__main__":
    main(*sys.argv[1:])
