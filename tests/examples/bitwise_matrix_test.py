#!/usr/bin/env python3
"""Strategies, prefetch depths, resharding and test modes change no bit of losses, gradient norms and weights.

usage: bitwise_matrix_test.py TRAIN_MLP [--test-modes]     TESSERA_TEST_MATRIX=reduced runs fewer combinations

For the same ranks, micro-batches and accumulation mode, every run must equal the first one: ddp without test modes.
"""
import concurrent.futures
import itertools
import os
import sys

import bitwise_runs

REDUCED = os.environ.get("TESSERA_TEST_MATRIX") == "reduced"
RANKS = [3] if REDUCED else [1, 2, 3, 4, 7]
ACCUMULATION = [("1", "reduced"), ("3", "local"), ("3", "reduced")]  # with 1, both modes are the same thing
STEPS = 20
CLIP = 0.02  # below every norm of these runs
# 37 divides by nothing, and 5 samples neither.
MODEL = ["--hidden", 37, "--depth", 2, "--batch", 5, "--steps", STEPS, "--lr", 0.01, "--seed", 3,
         "--threads", 1, "--eval-every", 7]
TEST_MODES = ["--test-delays", 11, "--test-poison", "--test-touch", "--test-queue"]


def variants():
    """The first one is the reference of all."""
    yield ["--strategy", "ddp"]
    yield ["--strategy", "zero1"]
    yield ["--strategy", "zero2"]
    for prefetch, reshard in itertools.product([0, 1, 2], ["yes", "no"]):
        if not REDUCED or (prefetch, reshard) in [(0, "yes"), (1, "yes"), (2, "no")]:
            yield ["--strategy", "fsdp", "--prefetch", prefetch, "--reshard-after-forward", reshard]


def outcome(program, options):
    return bitwise_runs.outcome(program, [*MODEL, *options], CLIP)


def main(program, with_test_modes):
    failures, compared = [], 0
    with concurrent.futures.ThreadPoolExecutor(max_workers=6 if with_test_modes else 2) as pool:  # delays sleep
        for ranks, (micro_batches, mode) in itertools.product(RANKS, ACCUMULATION):
            shared = ["--ranks", ranks, "--accumulate", micro_batches, "--accumulate-mode", mode]
            runs = [[*shared, *variant] for variant in variants()]
            if with_test_modes:
                runs = runs[:1] + [[*run, *TEST_MODES] for run in runs]
            outcomes = list(pool.map(lambda options: outcome(program, options), runs))
            for options, result in zip(runs[1:], outcomes[1:]):
                compared += 1
                found = bitwise_runs.difference(outcomes[0], result)
                if found:
                    failures.append(f"{' '.join(map(str, options))}: {found}")
    print("\n".join(failures[:20]))
    print(f"{compared} runs compared with ddp on the same ranks, over ranks {RANKS}: {len(failures)} differ")
    return 1 if failures or not compared else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], "--test-modes" in sys.argv[2:]))
