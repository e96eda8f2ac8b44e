#!/usr/bin/env python3
"""Six samples are six samples: however they are spread over micro-batches and ranks, losses agree to 1e-5.

usage: batch_equivalence_test.py TRAIN_MLP

Gradients are divided by ranks × micro-batches. Plain gradient descent is used, and no clipping: a forgotten factor then shows
in the second step's loss. The test proves that it would see one, by a run whose learning rate is off by such a factor.
"""
import itertools
import sys
import tempfile

import trainer_runs

TOLERANCE = 1e-5
RATE = 0.05
SETTINGS = ["--hidden", 37, "--depth", 1, "--steps", 20, "--clip", 0, "--weight-decay", 0, "--optimizer", "sgd",
            "--warmup", 0, "--threads", 1, "--eval-every", 0]
SPREADS = [  # ranks, batch, accumulate
    (1, 2, 3),
    (3, 2, 1),
    (2, 3, 1),
    (3, 1, 2),
    (6, 1, 1),
]


def losses(program, ranks, batch, accumulate, *options, rate=RATE):
    with tempfile.TemporaryDirectory() as folder:
        steps = trainer_runs.train(program, folder, *SETTINGS, "--ranks", ranks, "--batch", batch,
                                   "--accumulate", accumulate, "--lr", rate, *options)
    assert all(step["samples"] == 6 for step in steps), steps[0]
    return [step["loss"] for step in steps]


def distance(one, other):
    assert len(one) == len(other)
    return max(abs(a - b) / abs(a) for a, b in zip(one, other))


def main(program):
    reference = losses(program, 1, 6, 1)
    failures = []
    for (ranks, batch, accumulate), strategy in itertools.product(SPREADS, ["ddp", "zero1", "zero2", "fsdp"]):
        for mode in ["local", "reduced"] if accumulate > 1 else ["reduced"]:
            options = ["--strategy", strategy, "--accumulate-mode", mode]
            found = distance(reference, losses(program, ranks, batch, accumulate, *options))
            name = f"{ranks} ranks x batch {batch} x {accumulate} micro-batches, {strategy}, {mode}"
            print(f"{name}: {found:.1e}")
            if not found <= TOLERANCE:
                failures.append(name)
    for factor in [2, 3, 1 / 3]:
        found = distance(reference, losses(program, 1, 6, 1, rate=RATE * factor))
        print(f"a factor of {factor:.2f} too much: {found:.1e}")
        if found <= 100 * TOLERANCE:
            failures.append(f"a factor of {factor:.2f} would go unseen")
    print("\n".join(f"FAILED: {failure}" for failure in failures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
