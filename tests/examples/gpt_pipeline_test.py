#!/usr/bin/env python3
"""train_gpt on a mesh with stages, with and without shards and slices in each: the losses and norms of one rank, the same
bits by every schedule and strategy and by processes, memory as planned on every rank, and what a pipeline does not have
is refused.

usage: gpt_pipeline_test.py TRAIN_GPT [--not-measurable] [--mpirun MPIRUN]
where mmap cannot be interposed, "measured" is null; without MPIRUN, processes are started as torchrun does alone
"""
import argparse
import itertools
import math
import shutil
import tempfile

import mesh_runs
import process_runs
import trainer_runs

# Three slices of the 256 ids and of the 28 rows of a micro-batch are of different size; two slices of the heads have parts, too.
MODEL = ["--layers", 8, "--dim", 24, "--heads", 12, "--seq", 14, "--batch", 2, "--threads", 1, "--lr", 0.01, "--clip", 0.5,
         "--dropout", 0.1, "--seed", 5]
MODES = ["--test-poison", "--test-touch", "--test-queue"]
if trainer_runs.REDUCED:  # a run of 20 steps would sleep for most of a minute
    MODES += ["--test-delays", 5]


def train(program, steps, *options, by=trainer_runs.train):
    with tempfile.TemporaryDirectory() as folder:
        return by(program, folder, *MODEL, "--steps", steps, "--eval-every", steps, *options)


def mesh_of(stages, data, slices, contexts=1):
    return ["--mesh", f"pipeline={stages},shard={data},context={contexts},tensor={slices}"]


def check_mesh(program, mesh, accumulate, steps, measurable, mpirun):
    data = mesh[1]
    one = train(program, steps, "--ranks", 1, "--accumulate", data * accumulate, "--eval-batches", 2 * data)
    common = [*mesh_of(*mesh), "--accumulate", accumulate, "--eval-batches", 2]
    found, activations = set(), {}
    schedules = [["gpipe"], ["1f1b"], ["interleaved", "--chunks", 2, *MODES],
                 ["1f1b", "--activation-checkpointing", "yes", *MODES], ["zb-h1", *MODES]]
    for schedule in schedules:
        # In a selection each schedule has another strategy.
        for strategy in ["ddp" if schedule == ["1f1b"] else "fsdp"] if trainer_runs.REDUCED else ["fsdp", "ddp"]:
            runs = train(program, steps, *common, "--strategy", strategy, "--schedule", *schedule)
            mesh_runs.check_near(one, runs, 1e-5)
            found.add(str(mesh_runs.bits(runs)))
            held = mesh_runs.check_memory(runs, math.prod(mesh), measurable)
            activations["recomputed" if "--activation-checkpointing" in schedule else schedule[0]] = held
    for way in [] if trainer_runs.REDUCED else ["torchrun", "mpirun"] if mpirun else ["torchrun"]:
        by_processes = process_runs.trained_by(way, mpirun)
        found.add(str(mesh_runs.bits(train(program, steps, "--ranks", math.prod(mesh), *common, by=by_processes))))
    assert len(found) == 1, f"{mesh}: schedules, strategies and processes have other bits"
    # GPipe holds all micro-batches everywhere; 1F1B's last stage one.
    assert activations["gpipe"][-1] > activations["1f1b"][-1], (mesh, activations)
    assert activations["recomputed"][0] < activations["1f1b"][0], (mesh, activations)
    assert one[0]["grad_norm"] > 0.5, "the run does not clip"


def check_narrow(program):
    for precision, slices in [("bf16", 2), ("fp16", 1)][:1 if trainer_runs.SANITIZED else 2]:
        common = ["--accumulate", 4, "--eval-batches", 2, "--precision", precision]
        one = train(program, 4, "--ranks", 1, *common)
        mesh = mesh_of(2, 1, slices)
        runs = [train(program, 4, *mesh, *common, "--schedule", "gpipe"),
                train(program, 4, *mesh, *common, "--schedule", "1f1b", "--metrics-per-rank", "--sample", 0)]
        runs.append(train(program, 4, *mesh, *common, "--fp32-units", "blocks.1,final", "--schedule", "zb-h1"))
        runs.append(train(program, 4, *mesh, *common, "--fp32-units", "blocks.1,final"))
        assert mesh_runs.bits(runs[0]) == mesh_runs.bits(runs[1]) != mesh_runs.bits(runs[2]) == mesh_runs.bits(runs[3]), precision
        for step in runs[1]:  # of the last stage, which has one
            figures = step["ranks"]["loss"]
            assert math.isclose(figures["min"], step["loss"], rel_tol=1e-6) and figures["max_rank"] >= slices, figures
        mesh_runs.check_near(one, runs[0], 0.02)


def check_checkpoints(program):
    """What any mesh saves, any other goes on from; and so of files of weights, which are those of the whole model."""
    chunks = ["--schedule", "interleaved", "--chunks", 3]
    meshes = {mesh: [*options, "--accumulate", 8 // data, "--eval-batches", 4 // data, "--hash-weights"]
              for mesh, data, options in [((2, 2, 2), 2, mesh_of(2, 2, 2)), ((8, 1, 1), 1, mesh_of(8, 1, 1)),
                                          ((1, 4, 2), 4, mesh_of(1, 4, 2)), ((1, 1, 1), 1, ["--ranks", 1]),
                                          ((2, 1, 3), 1, [*mesh_of(2, 1, 3), *chunks])]}
    whole = train(program, 4, *meshes[2, 2, 2])
    with tempfile.TemporaryDirectory() as folder:
        def run(mesh, stop, *options, to="run"):
            length = ["--steps", 4, *(["--stop-after", stop] if stop < 4 else [])]
            return trainer_runs.train(program, folder, *MODEL, *length, "--checkpoint-dir", f"{folder}/{to}", *meshes[mesh],
                                      *options)
        first = run((2, 2, 2), 1, "--dump-weights", f"{folder}/weights")[-1]
        assert first["loss_bits"] == whole[0]["loss_bits"]
        ends = [run((8, 1, 1), 2, "--resume")[-1], run((2, 1, 3), 3, "--resume")[-1]]
        trained = [{name: step[name] for name in ["step", "loss", "grad_norm"]} for step in ends]  # they evaluate where they stop
        mesh_runs.check_near(whole[1:3], trained, 1e-5)
        saved = None
        for mesh in meshes:
            there = f"{folder}/{mesh}"
            shutil.copytree(f"{folder}/run", there)
            run(mesh, 3, "--resume", "--dump-weights", f"{there}.weights", to=mesh)
            weights = trainer_runs.read_safetensors(f"{there}.weights")
            assert weights == (saved := saved or weights), mesh
            mesh_runs.check_near(whole[3:], run(mesh, 4, "--resume", to=mesh)[-1:], 1e-5)
            if trainer_runs.REDUCED and mesh not in [(1, 1, 1), (2, 1, 3)]:
                continue
            # A step of no learning rate shows what was loaded.
            still = [0 if each == 0.01 else each for each in MODEL]
            loaded = trainer_runs.train(program, folder, *still, *meshes[mesh], "--steps", 1, "--init", f"{folder}/weights")[-1]
            assert loaded["tensor_hashes"] == first["tensor_hashes"], mesh


def check_text(program):
    """Every stage has a part in each byte; the text is one rank's, also with data and slices in each stage."""
    def text(*options):
        done = trainer_runs.run(program, *MODEL, "--steps", 3, "--eval-every", 2, "--eval-batches", 2, "--sample", 60,
                                "--prompt", "To be, or not to be", *options)
        assert done.returncode == 0, done.stderr
        return [line for line in done.stdout.splitlines() if line.startswith("  | ")]
    one = text("--ranks", 1, "--accumulate", 8)
    assert len("".join(one)) > 2 * 60 and "To be, or not to be" in one[0], one
    for mesh, chunks in [((2, 1, 1), []), ((2, 2, 2), []), ((2, 1, 1, 2), []), ((2, 1, 3), ["--schedule", "interleaved", "--chunks", 2])]:
        there = text(*mesh_of(*mesh), "--accumulate", 8 // mesh[1], *chunks)
        assert there == one, f"{mesh}: {there} and on one rank {one}"


def check_refused(program):
    for text, options in [("--chunks needs --schedule interleaved", ["--mesh", "pipeline=2", "--chunks", 2]),
                          ("to be a multiple of the 2 stages", ["--mesh", "pipeline=2", "--schedule", "interleaved", "--accumulate", 3]),
                          ("need as many layers", ["--mesh", "pipeline=9"]),
                          ("--wire is without effect", ["--mesh", "pipeline=2", "--accumulate", 2, "--wire", "int8"]),
                          ("zb-h1 keeps what", ["--mesh", "pipeline=2", "--schedule", "zb-h1", "--activation-checkpointing", "yes"]),
                          ("--offload activations is not possible with a pipeline",
                           ["--mesh", "pipeline=2", "--offload", "activations", "--activation-checkpointing", "yes"]),
                          ("--accumulate-mode is not possible with a pipeline", ["--mesh", "pipeline=2", "--accumulate-mode", "reduced"]),
                          ("no neighbours that a stage would talk to", ["--mesh", "pipeline=2", "--simulate-world", 2]),
                          ("needs --mesh with several places", ["--schedule", "1f1b"])]:
        done = trainer_runs.run(program, *MODEL, "--steps", 1, *options)
        assert done.returncode == 2 and text in done.stderr, done.stderr
    done = trainer_runs.run(program, *MODEL, "--steps", 1, "--mesh", "pipeline=2", "--accumulate", 2, "--draw-plan")
    for text in ["on each of 2 stages of blocks 0 4; the slowest part", "stage 1  .    F0   B0   B0", "bubble   33.3 %", "64,320 parameters in 10 units\n"]:
        assert done.returncode == 0 and text in done.stdout, done.stdout + done.stderr


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--not-measurable", action="store_true")
    parser.add_argument("--mpirun")
    options = parser.parse_args()
    meshes = [(2, 2, 1, 2)] if trainer_runs.SANITIZED else [(2, 1, 3), (2, 2, 1, 2), (3, 2, 1)] if trainer_runs.REDUCED else [
        mesh for mesh in itertools.product([2, 3, 4], [1, 2, 3], [1, 2, 3], [1, 2]) if math.prod(mesh) <= 8]
    for mesh in meshes:
        check_mesh(options.program, mesh, {2: 4, 3: 6, 4: 8}[mesh[0]], 3 if trainer_runs.REDUCED else 20, not options.not_measurable,
                   options.mpirun)
    check_narrow(options.program)
    if trainer_runs.OF_THREADS:  # the rest is files and words
        return
    check_checkpoints(options.program)
    check_text(options.program)
    check_refused(options.program)


if __name__ == "__main__":
    main()
