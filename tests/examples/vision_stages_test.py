#!/usr/bin/env python3
"""train_vision on a mesh with stages: a vision transformer has the losses and accuracy of one rank, the same bits by every
schedule and strategy and with ranks that are processes, memory as planned on every rank, and checkpoints that any mesh goes
on from; what has no stages is refused.

usage: vision_stages_test.py TRAIN_VISION [--not-measurable]     where mmap cannot be interposed, "measured" is null
"""
import itertools
import math
import shutil
import sys
import tempfile

import made_images
import mesh_runs
import process_runs
import trainer_runs

# Each step has 24 of 50 images, the last one of an epoch the two that are left, so that most micro-batches have none.
MODEL = ["--width", 12, "--batch", 3, "--threads", 1, "--lr", 0.01, "--seed", 5]
MICRO_BATCHES = 8  # of a step, on all ranks that have different ones
MODES = ["--test-delays", 5, "--test-poison", "--test-touch", "--test-queue"]


def mesh_options(mesh):
    stages, data = mesh
    where = ["--mesh", f"pipeline={stages},shard={data}"] if stages > 1 else ["--ranks", data]
    return [*where, "--accumulate", MICRO_BATCHES // data]


class Trainer:
    def __init__(self, program, data):
        self.program, self.data = program, ["--data", data, *MODEL]
        self.common = ["--model", "vit-s", *self.data]

    def train(self, *options, by=trainer_runs.train):
        with tempfile.TemporaryDirectory() as folder:
            return by(self.program, folder, *self.common, *options)


def check_mesh(trainer, one, mesh, length, measurable):
    common = [*mesh_options(mesh), *length]
    found, activations = set(), {}
    for schedule in [["gpipe"], ["1f1b"], ["interleaved", "--chunks", 2, *MODES], ["zb-h1", *MODES]]:
        # In a selection each schedule has another strategy.
        for strategy in ["ddp" if schedule == ["1f1b"] else "fsdp"] if trainer_runs.REDUCED else ["fsdp", "ddp"]:
            steps = trainer.train(*common, "--strategy", strategy, "--schedule", *schedule)
            mesh_runs.check_near(one, steps, 1e-5)
            found.add(str(mesh_runs.bits(steps)))
            activations[schedule[0]] = mesh_runs.check_memory(steps, math.prod(mesh), measurable)
    if not trainer_runs.REDUCED or mesh == (2, 1):
        by_processes = process_runs.trained_by("torchrun", None)
        options = ["--ranks", math.prod(mesh), *common]
        found.add(str(mesh_runs.bits(trainer.train(*options, by=by_processes))))
    assert len(found) == 1, f"{mesh}: schedules, strategies and processes have other bits"
    # GPipe holds all micro-batches everywhere; 1F1B's last stage one.
    assert activations["gpipe"][-1] > activations["1f1b"][-1], (mesh, activations)


def check_narrow(trainer):
    for precision in ["bf16", "fp16"]:
        common = ["--steps", 4, "--precision", precision]
        one = trainer.train(*mesh_options((1, 1)), *common)
        runs = [trainer.train(*mesh_options((2, 1)), *common, "--schedule", schedule) for schedule in ["gpipe", "1f1b", "zb-h1"]]
        assert mesh_runs.bits(runs[0]) == mesh_runs.bits(runs[1]) == mesh_runs.bits(runs[2]), precision
        mesh_runs.check_near(one, runs[0], 0.02)


def check_checkpoints(trainer):
    """What two stages of two shards save, any other mesh goes on from, in the midst of an epoch."""
    meshes = {mesh: mesh_options(mesh) for mesh in [(2, 2), (1, 1), (2, 1), (4, 1), (1, 4)]}
    meshes["chunks"] = [*mesh_options((2, 2)), "--schedule", "interleaved", "--chunks", 3]
    whole = trainer.train(*meshes[2, 2], "--steps", 6)
    saved = None
    with tempfile.TemporaryDirectory() as folder:
        def run(mesh, stop, to, *options):
            end = ["--stop-after", stop] if stop < 6 else []
            return trainer.train(*meshes[mesh], "--steps", 6, *end, "--checkpoint-dir", f"{folder}/{to}", *options)
        first = run((2, 2), 2, "run")
        assert mesh_runs.bits(first)[0] == mesh_runs.bits(whole)[0]
        for mesh in meshes:
            shutil.copytree(f"{folder}/run", f"{folder}/{mesh}")
            run(mesh, 2, mesh, "--resume", "--dump-weights", f"{folder}/{mesh}.weights")
            weights = trainer_runs.read_safetensors(f"{folder}/{mesh}.weights")
            assert weights == (saved := saved or weights), mesh
            rest = run(mesh, 6, mesh, "--resume")[-4:]
            mesh_runs.check_near(whole[2:], rest, 1e-5)
            assert mesh not in [(2, 2), "chunks"] or mesh_runs.bits(rest) == mesh_runs.bits(whole[2:]), mesh


def check_refused(trainer):
    for text, options in [("stages take models that are a row of blocks: --model vit-s, vit-b or vit-l; cnn is none",
                           ["--mesh", "pipeline=2", "--model", "cnn"]),
                          ("resnet18 is none, so leave pipeline out", ["--mesh", "pipeline=2", "--model", "resnet18"]),
                          ("13 stages of 1 chunk need as many layers, and there are 12: take fewer stages or chunks",
                           ["--mesh", "pipeline=13"]),
                          ("--chunks needs --schedule interleaved", ["--mesh", "pipeline=2", "--chunks", 2]),
                          ("to be a multiple of the 2 stages", ["--mesh", "pipeline=2", "--schedule", "interleaved", "--accumulate", 3]),
                          ("--accumulate-mode is not possible with a pipeline", ["--mesh", "pipeline=2", "--accumulate-mode", "reduced"]),
                          ("needs --mesh with several places", ["--schedule", "1f1b"])]:
        common = trainer.data if "--model" in options else trainer.common
        done = trainer_runs.run(trainer.program, *common, "--steps", 1, *options)
        assert done.returncode == 2 and text in done.stderr, done.stderr


def check_words(trainer):
    """The first stage also computes patches, so it has more to do than the mean, the more so where it has few blocks."""
    for stages, text in [(2, "each of 2 stages of blocks 0 6; the slowest part takes 1.01 times the mean"),
                         (12, "0 1 2 3 4 5 6 7 8 9 10 11; the slowest part takes 1.08 times the mean")]:
        done = trainer_runs.run(trainer.program, *trainer.common, "--steps", 1, "--mesh", f"pipeline={stages}", "--draw-plan")
        assert done.returncode == 0 and text in done.stdout and f"\nstage {stages - 1} " in done.stdout, done.stdout + done.stderr


def main(program, *options):
    measurable = "--not-measurable" not in options
    meshes = [(2, 2)] if trainer_runs.SANITIZED else [(2, 1), (2, 2), (4, 1)] if trainer_runs.REDUCED else [
        mesh for mesh in itertools.product([2, 4], [1, 2, 4]) if math.prod(mesh) <= 8]
    length = ["--steps", 4 if trainer_runs.REDUCED else 20]
    with tempfile.TemporaryDirectory() as folder:
        made_images.write_mnist(folder, 50, 20)
        trainer = Trainer(program, f"mnist:{folder}")
        one = trainer.train(*mesh_options((1, 1)), *length)
        for mesh in meshes:
            check_mesh(trainer, one, mesh, length, measurable)
        check_narrow(trainer)
        if trainer_runs.OF_THREADS:  # the rest is files and words
            return
        check_checkpoints(trainer)
        check_refused(trainer)
        check_words(trainer)


if __name__ == "__main__":
    main(*sys.argv[1:])
