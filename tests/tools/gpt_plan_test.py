#!/usr/bin/env python3
"""What `tessera plan` plans for a GPT is what train_gpt runs: the same hash, activations and all.

usage: gpt_plan_test.py TESSERA TRAIN_GPT
"""
import re
import subprocess
import sys

import plan_runs

SHAPE = ["--layers", 2, "--dim", 24, "--heads", 3, "--seq", 11, "--vocabulary", 259]
PRESET = ["--layers", 1, "--dim", 24, "--heads", 2, "--seq", 7, "--vocabulary", 300]
# (ranks, model, options of both)
CASES = [(1, SHAPE, []), (3, SHAPE, ["--precision", "bf16", "--batch", 5]),
         (2, SHAPE, ["--strategy", "ddp", "--activation-checkpointing", "yes", "--batch", 3]),
         (2, SHAPE, ["--strategy", "zero1", "--precision", "fp16", "--accumulate-mode", "reduced"]),
         (2, SHAPE, ["--strategy", "zero2", "--optimizer", "sgd"]),
         (3, SHAPE, ["--prefetch", 2, "--reshard-after-forward", "no"]),
         (4, SHAPE, ["--replicas", 2, "--strategy", "hsdp", "--batch", 2]),
         (6, SHAPE, ["--replicas", 3, "--strategy", "hfsdp", "--precision", "bf16"]),
         (4, SHAPE, ["--replicas", 4, "--strategy", "zero2"]), (1, PRESET, ["--batch", 2])]


def planned(tool, ranks, model, options):
    return plan_runs.plan(tool, *model, "--world", ranks, "--micro-batches", 3, *options)["hash"]


def trained(program, ranks, model, options):
    command = [program, *model, "--ranks", ranks, "--accumulate", 3, *options, "--steps", 1, "--sample", 0, "--threads", 1]
    if "--batch" not in options:
        command += ["--batch", 1]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = re.search(r"^plan .*; hash ([0-9a-f]{16})$", done.stdout, re.MULTILINE)
    assert found, done.stdout
    return found.group(1)


def main(tool, program):
    hashes = []
    for ranks, model, options in CASES:
        named = ["--model", "gpt2-124m", *model] if model is PRESET else model
        hashes.append(planned(tool, ranks, named, options))
        preset = ["--preset", "gpt2-124m", *model] if model is PRESET else model
        assert hashes[-1] == trained(program, ranks, preset, options), (ranks, model, options)
    assert len(set(hashes)) == len(CASES), "each case is another plan"


if __name__ == "__main__":
    main(*sys.argv[1:])
