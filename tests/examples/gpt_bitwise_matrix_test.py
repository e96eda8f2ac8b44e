#!/usr/bin/env python3
"""However train_gpt is run on the same ranks, micro-batches and accumulation mode, it computes the same bits.

usage: gpt_bitwise_matrix_test.py TRAIN_GPT [--full | --test-modes]

Factors: strategy, precision, accumulation (1; 3 reduced; 3 local), prefetch, resharding, activation checkpointing, ranks.
Prefetch and resharding mean something to fsdp alone. Precision, accumulation and ranks change the bits, so each of their
combinations has a reference of its own: ddp without checkpointing.

--full runs the whole product. Otherwise a selection in which every pair of values of any two factors occurs in three runs
at least (TESSERA_TEST_MATRIX=reduced: in one), because faults of a schedule come from one option, or from two that meet. Runs
are drawn greedily from the product, each the one that has most pairs not seen yet; the same every time.
--test-modes adds random delays, poisoned slots, touched ranges and a queued compute stream to the selected runs.
"""
import concurrent.futures
import itertools
import os
import pathlib
import sys
import tempfile

import bitwise_runs

REDUCED = os.environ.get("TESSERA_TEST_MATRIX") == "reduced"
CLIP = 0.2  # below every norm of these runs
TEXT = b"To be, or not to be, that is the question:\nWhether 'tis nobler in the mind to suffer\n" * 24
# 15, 3 heads of 5, 11 tokens, 2 sequences: they divide by nothing.
MODEL = ["--layers", 2, "--dim", 15, "--heads", 3, "--seq", 11, "--batch", 2, "--dropout", 0.1, "--steps", 20, "--lr", 0.01,
         "--seed", 3, "--threads", 1, "--eval-every", 7, "--sample", 0]
TEST_MODES = ["--test-delays", 11, "--test-poison", "--test-touch", "--test-queue"]

SCHEDULES = [("ddp", None, None), ("zero1", None, None), ("zero2", None, None),
             *itertools.product(["fsdp"], [0, 1, 2], ["yes", "no"])]
FACTORS = {
    "schedule": SCHEDULES,
    "precision": ["fp32", "bf16", "fp16"],
    "accumulation": [(1, "reduced"), (3, "reduced"), (3, "local")],
    "checkpointing": ["no", "yes"],
    "ranks": [1, 2, 3, 4, 7],
}


def pairs(run):
    """Of named values: strategy, prefetch and resharding count each for itself."""
    strategy, prefetch, reshard = run[0]
    values = [("strategy", strategy), ("prefetch", prefetch), ("reshard", reshard), *zip(list(FACTORS)[1:], run[1:])]
    return set(itertools.combinations([value for value in values if value[1] is not None], 2))


def selection():
    product = list(itertools.product(*FACTORS.values()))
    rounds = 1 if REDUCED else 3
    chosen = []
    for _ in range(rounds):
        missing = set().union(*map(pairs, product))
        while missing:
            best = max((run for run in product if run not in chosen), key=lambda run: len(pairs(run) & missing))
            chosen.append(best)
            missing -= pairs(best)
    return chosen


def options_of(run):
    (strategy, prefetch, reshard), precision, (micro_batches, mode), checkpointing, ranks = run
    options = ["--strategy", strategy, "--precision", precision, "--accumulate", micro_batches, "--accumulate-mode", mode,
               "--activation-checkpointing", checkpointing, "--ranks", ranks]
    if precision == "fp16":
        options += ["--loss-scale", 0]  # dynamic: the first steps overflow, and are skipped by all
    return options if prefetch is None else [*options, "--prefetch", prefetch, "--reshard-after-forward", reshard]


def reference_of(run):
    _, precision, accumulation, _, ranks = run
    return (SCHEDULES[0], precision, accumulation, "no", ranks)


def main(program, mode):
    chosen = list(itertools.product(*FACTORS.values())) if mode == "--full" else selection()
    modes = TEST_MODES if mode == "--test-modes" else []
    compared = [run for run in chosen if modes or run != reference_of(run)]
    references = sorted({reference_of(run) for run in compared}, key=str)
    with tempfile.TemporaryDirectory() as folder, \
            concurrent.futures.ThreadPoolExecutor(max_workers=6 if modes else 2) as pool:  # delays sleep
        text = pathlib.Path(folder) / "text.txt"
        text.write_bytes(TEXT)

        def outcome(run, extra):
            return bitwise_runs.outcome(program, [*MODEL, "--data", text, *options_of(run), *extra], CLIP)

        expected = dict(zip(references, pool.map(lambda run: outcome(run, []), references)))
        results = list(pool.map(lambda run: outcome(run, modes), compared))
    # On one rank in fp32 the two modes form the same sums; all else must differ, or the comparison shows nothing.
    settings = {(run[1], run[2][0], run[4]) for run in references}
    assert len({str(bits["weights"]) for bits in expected.values()}) >= len(settings), "different settings give equal bits"
    failures = []
    for run, result in zip(compared, results):
        found = bitwise_runs.difference(expected[reference_of(run)], result)
        if found:
            failures.append(f"{' '.join(map(str, options_of(run)))}: {found}")
    print("\n".join(failures[:20]))
    print(f"{len(compared)} runs compared with {len(references)} references: {len(failures)} differ")
    return 1 if failures or not compared else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""))
