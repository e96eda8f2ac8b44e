#!/usr/bin/env python3
"""Six samples are six samples: runs that spread them over ranks and micro-batches in every way must have the losses of one rank
with one micro-batch, and a factor that is forgotten must show.

usage: batch_equivalence_test.py TRAIN_MLP|TRAIN_GPT

Gradients are divided by ranks × micro-batches. Plain gradient descent is used, and no clipping: a forgotten factor then shows
in the second step's loss. The proof that it would is a run whose learning rate is off by such a factor.
"""
import itertools
import pathlib
import sys
import tempfile

import trainer_runs

TOLERANCE = 1e-5
PLAIN = ["--clip", 0, "--weight-decay", 0, "--optimizer", "sgd", "--warmup", 0, "--threads", 1, "--eval-every", 0]
STRATEGIES = ["ddp", "zero1", "zero2", "fsdp"]
SPREADS = [  # ranks, batch, accumulate
    (1, 2, 3),
    (3, 2, 1),
    (2, 3, 1),
    (3, 1, 2),
    (6, 1, 1),
]
# These are trained, with their steps and a learning rate at which the losses fall.
MODELS = {"train_mlp": (["--hidden", 37, "--depth", 1, "--steps", 20], 0.05),
          "train_gpt": (["--layers", 2, "--dim", 12, "--heads", 3, "--seq", 13, "--dropout", 0, "--steps", 30], 0.1)}


def distance(one, other):
    """The largest relative distance of two runs' losses."""
    return max(abs(a - b) / abs(a) for a, b in zip(one, other, strict=True))


class Trainer:
    def __init__(self, program, options, rate):
        self.program, self.options, self.rate = program, options, rate

    def losses(self, ranks, batch, accumulate, *options, factor=1.0):
        with tempfile.TemporaryDirectory() as folder:
            steps = trainer_runs.train(self.program, folder, *PLAIN, *self.options, "--ranks", ranks, "--batch", batch,
                                       "--accumulate", accumulate, "--lr", self.rate * factor, *options)
        assert all(step["samples"] == 6 for step in steps), steps[0]
        return [step["loss"] for step in steps]


def main(program):
    """Prints the distance of every run; the exit code."""
    trainer = Trainer(program, *MODELS[pathlib.Path(program).name])
    reference = trainer.losses(1, 6, 1)
    failures = []
    for (ranks, batch, accumulate), strategy in itertools.product(SPREADS, STRATEGIES):
        for mode in ["local", "reduced"] if accumulate > 1 else ["reduced"]:
            options = ["--strategy", strategy, "--accumulate-mode", mode]
            found = distance(reference, trainer.losses(ranks, batch, accumulate, *options))
            name = f"{ranks} ranks x batch {batch} x {accumulate} micro-batches, {strategy}, {mode}"
            print(f"{name}: {found:.1e}")
            if not found <= TOLERANCE:
                failures.append(name)
    for factor in [2, 3, 1 / 3]:
        found = distance(reference, trainer.losses(1, 6, 1, factor=factor))
        print(f"a factor of {factor:.2f} too much: {found:.1e}")
        if found <= 100 * TOLERANCE:
            failures.append(f"a factor of {factor:.2f} would go unseen")
    print("\n".join(f"FAILED: {failure}" for failure in failures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
