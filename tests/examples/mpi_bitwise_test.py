#!/usr/bin/env python3
"""train_gpt as processes that mpirun has started, or torchrun, computes the bits that it computes with ranks that are
threads: losses, norms, evaluations and weights, for every strategy, precision and accumulation mode, on meshes of replicas
too; and plans what it takes.

usage: mpi_bitwise_test.py MPIRUN TRAIN_GPT
"""
import itertools
import os
import pathlib
import sys
import tempfile

import bitwise_runs
import trainer_runs
from gpt_bitwise_matrix_test import CLIP, MODEL, TEST_MODES, TEXT

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "comm"))
from launched import Ranks  # noqa: E402
from mpi_job import Job  # noqa: E402

REDUCED = os.environ.get("TESSERA_TEST_MATRIX") == "reduced"
STRATEGIES = ["ddp", "zero1", "zero2", "fsdp"]
PRECISIONS = ["fp32", "bf16", "fp16"]
ACCUMULATION = [(2, 1, "reduced"), (3, 3, "reduced"), (3, 3, "local")]  # ranks, micro-batches, mode


# Each strategy meets each mesh and each precision once, and every way to add up.
HYBRID = [("hsdp", 2, 4, "fp32", 1, "reduced"), ("hfsdp", 2, 4, "bf16", 2, "reduced"), ("ddp", 2, 4, "fp16", 2, "local"),
          ("fsdp", 2, 6, "bf16", 1, "reduced"), ("hsdp", 3, 6, "fp16", 2, "reduced"), ("hfsdp", 4, 4, "fp32", 2, "local"),
          ("zero1", 3, 6, "bf16", 2, "local"), ("zero2", 2, 6, "fp32", 2, "reduced")]


def mesh_runs():
    for strategy, replicas, ranks, precision, micro_batches, mode in HYBRID[::3] if REDUCED else HYBRID:
        yield ranks, [], ["--strategy", strategy, "--replicas", replicas, "--precision", precision,
                          "--accumulate", micro_batches, "--accumulate-mode", mode]


def runs():
    every = itertools.product(STRATEGIES, PRECISIONS, ACCUMULATION[1:2] if REDUCED else ACCUMULATION)
    for strategy, precision, (ranks, micro_batches, mode) in every:
        yield ranks, [], ["--strategy", strategy, "--precision", precision, "--accumulate", micro_batches,
                          "--accumulate-mode", mode]
    for precision in PRECISIONS:
        yield 4, TEST_MODES, ["--strategy", "fsdp", "--precision", precision, "--prefetch", 2]
    yield from mesh_runs()


def train_as_processes(mpirun, program, ranks, folder, options):
    """As trainer_runs.train(), with `ranks` processes."""
    metrics = pathlib.Path(folder) / "metrics.jsonl"
    command = [program, *map(str, options), "--metrics", str(metrics), "--quiet"]
    job = Job(mpirun, ranks, command)
    code, output, _ = job.wait(trainer_runs.SECONDS)
    assert code == 0, f"{' '.join(command)}\nended with {code}: {output}"
    assert not any(job.left_behind()), f"left behind: {job.left_behind()}"
    return trainer_runs.read_metrics(metrics)


def train_with_torchruns_variables(program, ranks, folder, options):
    """As train_as_processes(), without MPI."""
    metrics = pathlib.Path(folder) / "metrics.jsonl"
    command = [program, *map(str, options), "--metrics", str(metrics), "--quiet"]
    with Ranks(command, ranks) as job:
        codes, _ = job.wait(trainer_runs.SECONDS)
        assert not any(codes.values()), f"{' '.join(command)}\nended with {codes}: {job.output(0)}"
    return trainer_runs.read_metrics(metrics)


def check_simulated_memory(mpirun, program, text):
    """A simulated rank of an mpi job takes, in each category, what the real one takes."""
    options = [*MODEL, "--data", text, "--precision", "bf16"]
    with tempfile.TemporaryDirectory() as folder:
        real = train_as_processes(mpirun, program, 3, folder, options)[-1]["memory"]["ranks"]
        for rank in range(3):
            simulation = ["--simulate-world", 3, "--rank", rank, "--simulate-backend", "mpi"]
            step = trainer_runs.train(program, folder, *options, *simulation)[-1]
            assert step["memory"]["ranks"] == [real[rank]], f"rank {rank}: {step['memory']['ranks']} and {real[rank]}"


def main(mpirun, program):
    failures, count = [], 0
    with tempfile.TemporaryDirectory() as folder:
        text = pathlib.Path(folder) / "text.txt"
        text.write_bytes(TEXT)
        check_simulated_memory(mpirun, program, text)
        for ranks, modes, chosen in runs():
            options = [*MODEL, "--data", text, *chosen]
            threads = bitwise_runs.outcome(program, [*options, "--ranks", ranks], CLIP)
            ways = {"mpirun": lambda _, at, *given, n=ranks: train_as_processes(mpirun, program, n, at, given)}
            if "--replicas" in chosen:
                ways["torchrun"] = lambda _, at, *given, n=ranks: train_with_torchruns_variables(program, n, at, given)
            for by, way in ways.items():
                found = bitwise_runs.difference(threads, bitwise_runs.outcome(program, [*options, *modes], CLIP, way))
                if found:
                    failures.append(f"{ranks} ranks of {by}, {' '.join(map(str, chosen))}: {found}")
                count += 1
    print("\n".join(failures))
    print(f"{count} runs with processes compared with threads: {len(failures)} differ")
    return 1 if failures or not count else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
