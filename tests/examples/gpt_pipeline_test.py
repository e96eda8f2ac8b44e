#!/usr/bin/env python3
"""train_gpt on a mesh with stages: the losses and norms of one rank, the same bits by every schedule, memory as planned
on every rank, and what a pipeline does not have is refused.

usage: gpt_pipeline_test.py TRAIN_GPT [--not-measurable]     where mmap cannot be interposed, "measured" is null
"""
import math
import os
import shutil
import sys
import tempfile

import trainer_runs

REDUCED = os.environ.get("TESSERA_TEST_MATRIX") == "reduced"
MODEL = ["--layers", 6, "--dim", 24, "--heads", 3, "--seq", 12, "--batch", 2, "--threads", 1, "--lr", 0.01, "--clip", 0.5,
         "--dropout", 0.1, "--seed", 5]


def train(program, steps, *options):
    with tempfile.TemporaryDirectory() as folder:
        return trainer_runs.train(program, folder, *MODEL, "--steps", steps, "--eval-every", steps, *options)


def bits(steps):
    return [(step["loss_bits"], step["grad_norm_bits"], step.get("held_out_loss_bits")) for step in steps]


def check_near(one, parted, tolerance):
    for step, other in zip(one, parted):
        for name in ["loss", "grad_norm", "held_out_loss"]:
            near = 20 * tolerance if name == "grad_norm" else tolerance  # it moves more than losses do
            same = name not in step or math.isclose(step[name], other[name], rel_tol=near)
            assert same, f"step {step['step']}: {name} is {other[name]} and on one rank {step[name]}"


def check_memory(steps, ranks, measurable):
    activations = []
    for rank in steps[-1]["memory"]["ranks"]:
        for name, both in rank["categories"].items():
            assert both["measured"] == (both["planned"] if measurable else None), (name, both)
        activations.append(rank["categories"]["activations"]["planned"])
    assert len(activations) == ranks
    return activations


def check_mesh(program, stages, data, accumulate, steps, measurable):
    one = train(program, steps, "--ranks", 1, "--accumulate", data * accumulate, "--eval-batches", 2 * data)
    mesh = ["--mesh", f"pipeline={stages},shard={data}", "--accumulate", accumulate, "--eval-batches", 2]
    found = {}
    for schedule in [["gpipe"], ["1f1b"], ["interleaved", "--chunks", 2]]:
        for strategy in ["fsdp", "ddp"]:
            if schedule[-1] == 2 and 2 * stages > 6:
                continue
            runs = train(program, steps, *mesh, "--strategy", strategy, "--schedule", *schedule)
            check_near(one, runs, 1e-5)
            found[schedule[0], strategy] = (bits(runs), check_memory(runs, stages * data, measurable))
    assert len({str(each[0]) for each in found.values()}) == 1, "schedules and strategies have other bits"
    # GPipe holds all micro-batches everywhere; 1F1B's last stage one.
    assert found["gpipe", "fsdp"][1][-1] > found["1f1b", "fsdp"][1][-1], found
    assert one[0]["grad_norm"] > 0.5, "the run does not clip"


def check_narrow(program):
    mesh = ["--mesh", "pipeline=2", "--accumulate", 4, "--eval-batches", 2]
    for precision in ["bf16", "fp16"]:
        one = train(program, 4, "--ranks", 1, *mesh[2:], "--precision", precision)
        runs = [train(program, 4, *mesh, "--precision", precision, "--schedule", "gpipe"),
                train(program, 4, *mesh, "--precision", precision, "--schedule", "1f1b", "--metrics-per-rank", "--sample", 0)]
        assert bits(runs[0]) == bits(runs[1]), precision
        for step in runs[1]:  # of the last stage, which has one
            figures = step["ranks"]["loss"]
            assert math.isclose(figures["min"], step["loss"], rel_tol=1e-6) and figures["max_rank"] == 1, figures
        check_near(one, runs[0], 0.02)


def check_checkpoints(program):
    """What stages save, other stages and ranks without any go on from, and back; and so of files of weights."""
    chunks = ["--schedule", "interleaved", "--chunks", 3]
    meshes = {name: [*mesh, "--accumulate", 8 // data, "--eval-batches", 4 // data, "--hash-weights"]
              for name, data, mesh in [("2 x 2", 2, ["--mesh", "pipeline=2,shard=2"]), ("4", 4, ["--mesh", "shard=4"]),
                                       ("1", 1, ["--ranks", 1]), ("3", 1, ["--mesh", "pipeline=3"]),
                                       ("chunks", 1, ["--mesh", "pipeline=2", *chunks])]}
    whole = train(program, 4, *meshes["2 x 2"])
    with tempfile.TemporaryDirectory() as folder:
        def last_step(mesh, stop, *options, to="run"):
            length = ["--steps", 4, *(["--stop-after", stop] if stop < 4 else [])]
            return trainer_runs.train(program, folder, *MODEL, *length, "--checkpoint-dir", f"{folder}/{to}",
                                      *meshes[mesh], *options)[-1]
        first = last_step("2 x 2", 1, "--dump-weights", f"{folder}/weights")
        assert first["loss_bits"] == whole[0]["loss_bits"]
        check_near(whole[1:3], [last_step("3", 2, "--resume"), last_step("chunks", 3, "--resume")], 1e-5)
        for mesh in meshes:
            shutil.copytree(f"{folder}/run", f"{folder}/{mesh}")
            check_near(whole[3:], [last_step(mesh, 4, "--resume", to=mesh)], 1e-5)
            # A step of no learning rate shows what was loaded.
            still = [0 if each == 0.01 else each for each in MODEL]
            loaded = trainer_runs.train(program, folder, *still, *meshes[mesh], "--steps", 1, "--init",
                                        f"{folder}/weights")[-1]
            assert loaded["tensor_hashes"] == first["tensor_hashes"], mesh


def check_refused(program):
    for text, options in [("--chunks needs --schedule interleaved", ["--mesh", "pipeline=2", "--chunks", 2]),
                          ("to be a multiple of the 2 stages", ["--mesh", "pipeline=2", "--schedule", "interleaved", "--accumulate", 3]),
                          ("need as many layers", ["--mesh", "pipeline=7"]),
                          ("--sample is not possible with a pipeline", ["--mesh", "pipeline=2", "--sample", 5]),
                          ("--accumulate-mode is not possible with a pipeline", ["--mesh", "pipeline=2", "--accumulate-mode", "reduced"]),
                          ("needs --mesh with several places", ["--schedule", "1f1b"])]:
        done = trainer_runs.run(program, *MODEL, "--steps", 1, *options)
        assert done.returncode == 2 and text in done.stderr, done.stderr
    done = trainer_runs.run(program, *MODEL, "--steps", 1, "--mesh", "pipeline=2", "--accumulate", 2, "--draw-plan")
    assert done.returncode == 0 and "stage 1  .    F0   B0   B0" in done.stdout and "bubble   33.3 %" in done.stdout, done.stdout + done.stderr


def main(program, *options):
    measurable = "--not-measurable" not in options
    meshes = [(2, 2, 4)] if REDUCED else [(2, 1, 4), (2, 2, 4), (3, 1, 6), (3, 2, 3), (4, 1, 8), (4, 2, 4)]
    for stages, data, accumulate in meshes:
        check_mesh(program, stages, data, accumulate, 4 if REDUCED else 20, measurable)
    check_narrow(program)
    check_checkpoints(program)
    check_refused(program)


if __name__ == "__main__":
    main(*sys.argv[1:])
