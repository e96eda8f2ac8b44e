#!/usr/bin/env python3
"""Slices of a GPT's layers over the axis tensor, or parts of its sequences over the axis context, with sharding around them:
losses are those of one rank, sharding around a group changes no bit, planned bytes are those measured,
and a checkpoint of any mesh goes on in any other.

usage: gpt_cuts_test.py TRAIN_GPT tensor|context
"""
import itertools
import pathlib
import shutil
import sys
import tempfile

import bitwise_runs
import trainer_runs
from batch_equivalence_test import distance

AXIS = sys.argv[2]
SAMPLES = 6
# Three slices of the 256 ids have padding, and those of a pass of 15 rows, too. Half of 30 positions is an odd number.
MODEL = ["--layers", 2, "--dim", 24, "--heads", 12, "--seq", {"tensor": 15, "context": 30}[AXIS], "--dropout", 0.1, "--seed", 3,
         "--threads", 1, "--lr", 0.003, "--eval-every", 10, "--eval-batches", 2]
CLIP = 0.5  # below every norm of these runs
MESHES = [(1, 2), (2, 2), (2, 3)] if trainer_runs.REDUCED else list(itertools.product([1, 2, 3], [1, 2, 3]))[1:]
OTHER = {"tensor": 4, "context": 3}[AXIS]  # ranks along it that go on with what 2 have saved
BESIDE = {"tensor": [], "context": [",tensor=2", ",tensor=3"]}[AXIS][-1 if trainer_runs.REDUCED else 0:]  # what may be inside
TOLERANCE = 1e-5
MODES = ["--test-delays", 5, "--test-poison", "--test-touch", "--test-queue"]


def of(mesh, accumulate=1, inside=""):
    shards, parts = mesh
    return ["--mesh", f"shard={shards},{AXIS}={parts}{inside}", "--batch", SAMPLES // shards // accumulate,
            "--accumulate", accumulate]


def train(program, *options):
    with tempfile.TemporaryDirectory() as folder:
        steps = trainer_runs.train(program, folder, *MODEL, "--clip", CLIP, *options)
    bitwise_runs.check_memory(steps[-1]["memory"]["ranks"])
    return steps


def figures(steps):
    return [value for step in steps for value in (step["loss"], step["grad_norm"], step.get("held_out_loss")) if value is not None]


def check_losses(program):
    reference = figures(train(program, "--steps", 20, *of((1, 1))))
    for mesh in MESHES:
        for more in [[]] if trainer_runs.REDUCED else [[], ["--strategy", "ddp"], ["--activation-checkpointing", "yes"]]:
            found = distance(reference, figures(train(program, "--steps", 20, *of(mesh), *more)))
            print(f"{mesh} {' '.join(more)}: {found:.1e}")
            assert found <= TOLERANCE, mesh
    for inside in BESIDE:
        found = distance(reference, figures(train(program, "--steps", 20, *of((1, 2), inside=inside))))
        print(f"(1, 2){inside}: {found:.1e}")
        assert found <= TOLERANCE, inside
    accumulated = figures(train(program, "--steps", 20, *of((1, 2), 3)))
    assert distance(reference[:2], accumulated[:2]) <= TOLERANCE
    for precision, tolerance in [("bf16", 2**-6), ("fp16", 2**-9)]:
        half = ["--precision", precision, "--loss-scale", 256, "--steps", 8]
        found = distance(figures(train(program, *half, *of((1, 1)))), figures(train(program, *half, *of((2, 3)))))
        print(f"{precision}: {found:.1e}")
        assert found <= tolerance, precision


def check_bits(program):
    runs = 0
    for mesh in [(2, 2)] if trainer_runs.REDUCED else [(2, 2), (3, 2), (2, 3)]:
        for precision in [["--precision", "fp32"], ["--precision", "bf16", "--fp32-units", "blocks.1"]]:
            common = [*MODEL, "--steps", 16, *of(mesh), *precision]
            expected = bitwise_runs.outcome(program, [*common, "--strategy", "ddp"], CLIP)
            others = [["--strategy", "fsdp", "--activation-checkpointing", "yes", *MODES], ["--strategy", "zero2"]]
            for more in others if trainer_runs.REDUCED else [*others, ["--strategy", "zero1"], ["--prefetch", 3], MODES]:
                parted = bitwise_runs.difference(expected, bitwise_runs.outcome(program, [*common, *more], CLIP))
                assert parted is None, f"{mesh} {precision} {more}: {parted}"
                runs += 1
    return runs


def check_checkpoints(program):
    """Tensors are the same, bit by bit, on every mesh that goes on, and so is what they are named; losses go on."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        saved, weights = folder / "saved", folder / "weights"
        run = ["--steps", 6, "--checkpoint-dir"]
        trainer_runs.train(program, folder, *MODEL, *run, saved, "--stop-after", 3, *of((2, 2)), "--dump-weights", weights)
        expected = trainer_runs.read_safetensors(weights)
        losses = []
        for mesh, batch in [("shard=1,tensor=1", 6), ("shard=4,tensor=1", 2), (f"shard=1,{AXIS}={OTHER}", 6)]:
            copy = folder / "copy"
            shutil.copytree(saved, copy)
            common = [*MODEL, *run, copy, "--resume", "--mesh", mesh, "--batch", batch]
            trainer_runs.train(program, folder, *common, "--stop-after", 3, "--dump-weights", weights)
            assert trainer_runs.read_safetensors(weights) == expected, mesh
            losses.append([step["loss"] for step in trainer_runs.train(program, folder, *common)[-3:]])
            shutil.rmtree(copy)
        assert distance(losses[0], losses[2]) <= TOLERANCE, losses


def check_text(program):
    """All ranks of a group write one text, that of one rank."""
    texts = []
    for mesh in [(1, 1), (1, 3), (2, 2)]:
        done = trainer_runs.run(program, *MODEL, "--steps", 2, *of(mesh), "--sample", 40, "--temperature", 1)
        assert done.returncode == 0, done.stderr
        texts.append([line for line in done.stdout.splitlines() if line.startswith("  | ")])
    assert texts[0] and texts.count(texts[0]) == len(texts), texts


def check_refused(program):
    cases = {"tensor": [(["--mesh", "tensor=5"], "5 ranks along tensor do not divide the 12 of --heads"),
                        (["--mesh", "tensor=2", "--granules", 4], "share samples: slices change last bits"),
                        (["--mesh", "pipeline=2", "--granules", 4], "share samples: stages do different work")],
             "context": [(["--mesh", "context=5"], "5 ranks along context do not divide the 12 heads of --heads"),
                         (["--mesh", "context=3,tensor=6"], "3 ranks along context do not divide the 2 heads of a slice"),
                         (["--mesh", "context=4"], "4 ranks along context do not divide the 30 of --seq"),
                         (["--mesh", "context=2", "--granules", 4], "share samples: slices change last bits, and so do parts of")]}
    for options, why in cases[AXIS]:
        done = trainer_runs.run(program, *MODEL, *options)
        assert done.returncode == 2 and why in done.stderr, done.stderr


def main():
    program = sys.argv[1]
    check_losses(program)
    runs = check_bits(program)
    check_checkpoints(program)
    check_text(program)
    check_refused(program)
    print(f"{len(MESHES)} meshes have the losses of one rank; {runs} runs, 0 differ")


if __name__ == "__main__":
    main()
