#!/usr/bin/env python3
"""However six samples are spread over ranks and micro-batches, losses agree with dropout, too; recomputing activations changes no
bit, and test modes neither; half precision stays near fp32.

usage: gpt_equivalence_test.py TRAIN_GPT
"""
import sys
import tempfile

import trainer_runs
from batch_equivalence_test import SPREADS, TOLERANCE, Trainer, distance

MODEL = ["--layers", 2, "--dim", 12, "--heads", 3, "--seq", 13, "--steps", 8]
PLAIN = ["--optimizer", "sgd", "--lr", 0.1, "--clip", 0, "--warmup", 0]


def train(program, *options):
    with tempfile.TemporaryDirectory() as folder:
        return trainer_runs.train(program, folder, *MODEL, "--threads", 1, "--eval-every", 0, *options)


def check_spreads(program):
    """Plain gradient descent shows another mask in the second step's loss."""
    trainer = Trainer(program, MODEL, rate=0.1)
    reference = trainer.losses(1, 6, 1, "--dropout", 0.2)
    for spread in SPREADS:
        found = distance(reference, trainer.losses(*spread, "--dropout", 0.2))
        print(f"dropout, {spread}: {found:.1e}")
        assert found <= TOLERANCE, spread
    assert distance(trainer.losses(1, 6, 1), reference) > 100 * TOLERANCE, "dropout has no effect"


def check_precisions(program):
    """Half precision stays near fp32, by its rounding and no more, and units in fp32 get and give what they should."""
    def norms_and_losses(*options):
        steps = train(program, *PLAIN, "--ranks", 2, "--batch", 3, "--dropout", 0.1, *options)
        return [step["grad_norm"] for step in steps], [step["loss"] for step in steps]

    norms, losses = norms_and_losses()
    for precision, tolerance in [("bf16", 2**-6), ("fp16", 2**-9)]:  # some roundings of 2^-9 and 2^-12
        for units in [[], ["--fp32-units", "*"], ["--fp32-units", "embedding"], ["--fp32-units", "blocks.*,final"]]:
            half_norms, half_losses = norms_and_losses("--precision", precision, "--loss-scale", 256, *units)
            found = distance(norms, half_norms)
            print(f"{precision} {' '.join(units)}: gradient norms {found:.1e}, losses {distance(losses, half_losses):.1e}")
            assert 0 < found <= tolerance and distance(losses, half_losses) <= tolerance, (precision, units)


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
    check_spreads(program)
    check_precisions(program)
    check_bits(program)
    print("recomputed activations and test modes: the same bits")


if __name__ == "__main__":
    main(sys.argv[1])
