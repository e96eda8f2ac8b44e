#!/usr/bin/env python3
"""Whether the losses of two runs follow each other.

usage: compare_losses.py A.jsonl B.jsonl --relative BOUND    prints the largest difference; exits with 1 beyond the bound
"""
import argparse
import json
import pathlib
import sys


def losses(path):
    lines = pathlib.Path(path).read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["loss"] for line in lines]


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("files", nargs=2)
    parser.add_argument("--relative", type=float, required=True)
    options = parser.parse_args()
    a, b = map(losses, options.files)
    if len(a) != len(b) or not a:
        sys.exit(f"{len(a)} steps and {len(b)} steps cannot be compared")
    worst = max(abs(x - y) / abs(x) for x, y in zip(a, b))
    print(f"{len(a)} steps, largest relative difference {worst:.2e}, bound {options.relative:.0e}")
    return 0 if worst <= options.relative else 1


if __name__ == "__main__":
    sys.exit(main())
