#!/usr/bin/env python3
"""However six samples are spread over ranks and micro-batches, losses agree, dropout included; recomputing activations changes no
bit, and test modes neither.

usage: gpt_equivalence_test.py TRAIN_GPT
"""
import sys
import tempfile

import trainer_runs

TOLERANCE = 1e-5
MODEL = ["--layers", 2, "--dim", 12, "--heads", 3, "--seq", 13, "--steps", 8, "--threads", 1, "--eval-every", 0]
# Plain gradient descent without clipping shows a forgotten factor, or another mask, in the second step's loss.
PLAIN = ["--optimizer", "sgd", "--lr", 0.1, "--clip", 0, "--warmup", 0]
SPREADS = [(1, 2, 3), (3, 2, 1), (2, 3, 1), (3, 1, 2), (6, 1, 1)]  # ranks, batch, accumulate


def train(program, *options):
    with tempfile.TemporaryDirectory() as folder:
        return trainer_runs.train(program, folder, *MODEL, *options)


def spread_losses(program, ranks, batch, accumulate, *options):
    steps = train(program, *PLAIN, "--ranks", ranks, "--batch", batch, "--accumulate", accumulate, *options)
    assert all(step["samples"] == 6 for step in steps)
    return [step["loss"] for step in steps]


def distance(one, other):
    return max(abs(a - b) / abs(a) for a, b in zip(one, other, strict=True))


def check_spreads(program, dropout):
    reference = spread_losses(program, 1, 6, 1, "--dropout", dropout)
    for spread in SPREADS:
        found = distance(reference, spread_losses(program, *spread, "--dropout", dropout))
        print(f"dropout {dropout}, {spread}: {found:.1e}")
        assert found <= TOLERANCE, spread
    return reference


def check_bits(program):
    def bits(*options):
        steps = train(program, "--ranks", 3, "--batch", 2, "--accumulate", 2, "--dropout", 0.2, *options)
        return [(step["loss_bits"], step["grad_norm_bits"]) for step in steps], steps[-1]["held_out_loss_bits"]

    for precision in [["--precision", "fp32"], ["--precision", "bf16", "--fp32-units", "final"]]:
        expected = bits(*precision)
        recompute = [*precision, "--activation-checkpointing", "yes"]
        modes = ["--test-delays", 5, "--test-poison", "--test-touch", "--test-queue"]
        assert bits(*recompute) == expected, precision
        assert bits(*recompute, *modes, "--prefetch", 3) == expected, precision
        assert bits(*precision, "--seed", 1) != expected


def main(program):
    without = check_spreads(program, 0)
    with_dropout = check_spreads(program, 0.2)
    assert distance(without, with_dropout) > 100 * TOLERANCE, "dropout has no effect"
    check_bits(program)
    print("recomputed activations and test modes: the same bits")


if __name__ == "__main__":
    main(sys.argv[1])
