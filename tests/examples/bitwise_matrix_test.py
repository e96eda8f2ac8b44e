#!/usr/bin/env python3
"""However a trainer is run on the same mesh, in the same precision and with the same micro-batches, it computes the same bits:
losses, gradient norms, evaluations and weights; and in each run the planned bytes are those measured.

usage: bitwise_matrix_test.py MATRIX PROGRAM [--full | --test-modes] [--mpirun MPIRUN] [--avx2]

A matrix has factors, and a run has a value of each. Some factors change the bits; each combination of those has a reference,
the run with the first value of every other factor (ddp), on ranks that are threads and without test modes. Runs are a selection
in which every pair of values of any two factors occurs in three runs at least (TESSERA_TEST_MATRIX=reduced: in one), because
faults of a schedule come from one option, or from two that meet. They are drawn greedily from the product, each the one that has
most pairs not seen yet; the same every time. --full runs the whole product.
The test modes are random delays, poisoned slots, touched ranges and a queued compute stream: --test-modes adds them to every
run, and a matrix that says so has them in every other one. --avx2 caps the processor to AVX2; one that has not even that skips.
"""
import argparse
import concurrent.futures
import itertools
import os
import pathlib
import sys
import tempfile
import typing

import bitwise_runs
import made_images
import process_runs
import trainer_runs

TEST_MODES = ("--test-delays", 11, "--test-poison", "--test-touch", "--test-queue")
TEXT = b"To be, or not to be, that is the question:\nWhether 'tis nobler in the mind to suffer\n" * 24

FLAT = [("--strategy", strategy) for strategy in ["ddp", "zero1", "zero2"]]
HYBRID = [("--strategy", strategy) for strategy in ["hsdp", "hfsdp"]]
FSDP = [("--strategy", "fsdp", "--prefetch", prefetch, "--reshard-after-forward", reshard)
        for prefetch, reshard in itertools.product([0, 1, 2], ["yes", "no"])]
BY_GROUP = [("--strategy", "fsdp", "--prefetch", 1, "--reshard-after-forward", "group")]
ACCUMULATION = [("--accumulate", micro_batches, "--accumulate-mode", mode)
                for micro_batches, mode in [(1, "reduced"), (3, "reduced"), (3, "local")]]  # with 1, both modes are the same


def precisions(dynamic_scale=False):
    """With a dynamic loss scale the first steps overflow, and are skipped by all."""
    return [("--precision", "fp32"), ("--precision", "bf16"),
            ("--precision", "fp16") + (("--loss-scale", 0) if dynamic_scale else ())]


def mesh(ranks, replicas=1, *more):
    return ("--ranks", ranks) + (("--replicas", replicas) if replicas > 1 else ()) + more


class Matrix(typing.NamedTuple):
    options: list
    clip: float  # below every norm of these runs
    data: typing.Callable  # makes files in a folder; the options that name them
    same: dict  # the factors that change no bit, with their values
    other: dict  # the factors that do
    modes: str = "asked for"  # or "every other run"


def no_data(_):
    return []


def text(folder):
    path = pathlib.Path(folder) / "text.txt"
    path.write_bytes(TEXT)
    return ["--data", path]


def images(folder):
    made_images.write_mnist(folder, 120, 31)
    return ["--data", f"mnist:{folder}"]


# 37 divides by nothing, and 5 samples neither.
MLP = Matrix(
    options=["--hidden", 37, "--depth", 2, "--batch", 5, "--steps", 20, "--lr", 0.01, "--seed", 3, "--threads", 1,
             "--eval-every", 7],
    clip=0.02, data=no_data, modes="every other run",
    same={"schedule": FLAT + FSDP + HYBRID + BY_GROUP},
    other={"sums": [("--precision", "fp32", *ACCUMULATION[0]), ("--precision", "bf16", *ACCUMULATION[2]),
                    ("--precision", "fp16", *ACCUMULATION[1]), ("--precision", "fp32", *ACCUMULATION[1])],
           "mesh": [mesh(3), mesh(4, 2), mesh(6, 3)] if trainer_runs.REDUCED else
                   [mesh(1), mesh(2), mesh(3), mesh(7), mesh(4, 2), mesh(4, 4), mesh(6, 3), mesh(6, 2)]})
# 15, 3 heads of 5, 11 tokens, 2 sequences: they divide by nothing.
GPT = Matrix(
    options=["--layers", 2, "--dim", 15, "--heads", 3, "--seq", 11, "--batch", 2, "--dropout", 0.1, "--steps", 20, "--lr", 0.01,
             "--seed", 3, "--threads", 1, "--eval-every", 7, "--sample", 0],
    clip=0.2, data=text,
    same={"schedule": FLAT + FSDP, "checkpointing": [("--activation-checkpointing", "no"), ("--activation-checkpointing", "yes")]},
    other={"precision": precisions(dynamic_scale=True), "accumulation": ACCUMULATION,
           "ranks": [mesh(ranks) for ranks in [1, 2, 3, 4, 7]]})
# The same as processes that mpirun has started, or with torchrun's variables.
PROCESSES = GPT._replace(
    modes="every other run",
    same={"ranks are": ["threads", "mpirun", "torchrun"], "schedule": FLAT + FSDP[2:3] + HYBRID},
    other={"precision": precisions(),
           "mesh": [mesh(3, 1, *ACCUMULATION[2]), mesh(4, 2, *ACCUMULATION[1])] if trainer_runs.REDUCED else
                   [mesh(2), mesh(3, 1, *ACCUMULATION[1]), mesh(3, 1, *ACCUMULATION[2]), mesh(4, 2),
                    mesh(4, 2, *ACCUMULATION[2]), mesh(4, 4, *ACCUMULATION[1]), mesh(6, 3, *ACCUMULATION[1])]})
VISION = Matrix(
    options=["--width", 4, "--steps", 12, "--eval-every", 5, "--threads", 1, "--shift", 1],
    clip=0.01, data=images, modes="every other run",
    same={"schedule": FLAT + FSDP[2:3] + HYBRID},
    other={"network": [
        ("--model", "cnn", "--ranks", 3, "--batch", 5),
        ("--model", "cnn", *mesh(4, 2), "--batch", 3, "--accumulate", 2, "--accumulate-mode", "local"),
        ("--model", "cnn", "--ranks", 2, "--batch", 6, "--precision", "bf16", "--accumulate", 2, "--accumulate-mode", "reduced"),
        ("--model", "cnn", "--ranks", 2, "--batch", 6, "--precision", "fp16", "--loss-scale", 64),
        ("--model", "resnet18", "--ranks", 3, "--batch", 4, "--accumulate", 2, "--accumulate-mode", "reduced"),
        ("--model", "resnet18", "--ranks", 2, "--batch", 4, "--precision", "bf16"),
        ("--model", "resnet18", *mesh(4, 2), "--batch", 3, "--sync-batch-norm"),
        ("--model", "vit-s", "--ranks", 3, "--batch", 4, "--lr", 0.02)]})
# Steps of granules, on any number of ranks: of the last round some have none.
ANY_RANKS = [mesh(1), mesh(5), mesh(4, 2)] if trainer_runs.REDUCED else [
    mesh(1), mesh(2), mesh(3), mesh(4), mesh(5), mesh(6), mesh(8), mesh(12), mesh(4, 2), mesh(6, 3)]
MLP_GRANULES = MLP._replace(
    options=[*MLP.options, "--granules", 12],
    same={"mesh": ANY_RANKS, "schedule": FLAT + FSDP[2:4] + HYBRID},
    other={"precision": precisions(dynamic_scale=True)})
GPT_GRANULES = GPT._replace(
    options=[*GPT.options, "--granules", 12], modes="every other run",
    same={"ranks are": ["threads", "mpirun", "torchrun"], "mesh": ANY_RANKS,
          "schedule": FLAT[:1] + FSDP[2:3] if trainer_runs.REDUCED else FLAT + FSDP[2:4] + HYBRID},
    other={"precision": precisions(dynamic_scale=True)})
VISION_GRANULES = VISION._replace(
    options=[*VISION.options, "--granules", 12],
    same={"mesh": ANY_RANKS, "schedule": FLAT + FSDP[2:3] + HYBRID},
    other={"network": [("--model", "cnn", "--batch", 2), ("--model", "cnn", "--batch", 3, "--precision", "bf16"),
                       ("--model", "resnet18", "--batch", 2, "--precision", "fp16", "--loss-scale", 64)]})
DIFFERENT = ["--model", "--ranks", "--precision", "--accumulate"]
MATRICES = {"mlp": MLP, "gpt": GPT, "processes": PROCESSES, "vision": VISION, "mlp_granules": MLP_GRANULES,
            "gpt_granules": GPT_GRANULES, "vision_granules": VISION_GRANULES}


def parts(value):
    """Strategy, prefetch and resharding count each for itself; another value is one."""
    return list(zip(value[::2], value[1::2])) if value[0] == "--strategy" else [value]


def pairs(run):
    return set(itertools.combinations([part for value in run for part in parts(value)], 2))


def flags_of(run):
    """The options of a run, each with its value."""
    options = [option for value in run if not isinstance(value, str) for option in value]
    return [(option, value) for option, value in zip(options, [*options[1:], ""]) if str(option).startswith("--")]


def selection(product):
    """A few runs of the product that have all pairs."""
    chosen, seen = [], {run: pairs(run) for run in product}
    for _ in range(1 if trainer_runs.REDUCED else 3):
        missing = set().union(*seen.values())
        while missing:
            rest = [run for run in product if run not in chosen]
            if not rest:
                return chosen
            best = max(rest, key=lambda run: len(seen[run] & missing))
            if not seen[best] & missing:
                break
            chosen.append(best)
            missing -= seen[best]
    return chosen


def cap_to_avx2():
    flags = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    if not {"avx2", "fma"} <= set(flags):
        print("this processor has no AVX2")
        sys.exit(77)
    os.environ |= {"TESSERA_INSTRUCTION_SET": "avx2", "TESSERA_PRODUCTS": "avx2", "OPENBLAS_CORETYPE": "Haswell"}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("matrix", choices=MATRICES)
    parser.add_argument("program")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--test-modes", action="store_true")
    parser.add_argument("--mpirun")
    parser.add_argument("--avx2", action="store_true")
    given = parser.parse_args()
    if given.avx2:
        cap_to_avx2()
    matrix = MATRICES[given.matrix]
    same = {name: [value for value in values if value != "mpirun" or given.mpirun] for name, values in matrix.same.items()}
    product = list(itertools.product(*same.values(), *matrix.other.values()))
    first = tuple(values[0] for values in same.values())
    chosen = product if given.full else selection(product)

    def reference_of(run):
        return first + run[len(first):]

    def outcome(run, modes):
        way = run[0] if isinstance(run[0], str) else "threads"
        options = [option for value in run if not isinstance(value, str) for option in value]
        train = trainer_runs.train if way == "threads" else process_runs.trained_by(way, given.mpirun)
        return bitwise_runs.outcome(given.program, [*matrix.options, *data, *options, *modes], matrix.clip, train)

    def modes_of(number):
        return TEST_MODES if given.test_modes or (matrix.modes == "every other run" and number % 2 == 0) else ()

    runs = [(run, modes_of(number)) for number, run in enumerate(chosen)]
    runs = [(run, modes) for run, modes in runs if modes or run != reference_of(run)]
    references = sorted({reference_of(run) for run, _ in runs}, key=str)
    at_once = 1 if "ranks are" in same else 6 if given.test_modes else 2  # delays sleep; jobs look for what they left behind
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(max_workers=at_once) as pool:
        data = matrix.data(folder)
        expected = dict(zip(references, pool.map(lambda run: outcome(run, ()), references)))
        results = list(pool.map(lambda each: outcome(*each), runs))
    # Meshes of as many ranks may add up alike, and so may the ways to add up micro-batches; all else must differ, or the
    # comparison shows nothing.
    settings = {tuple(option for option in flags_of(run) if option[0] in DIFFERENT) for run in references}
    assert len({str(bits["weights"]) for bits in expected.values()}) >= len(settings), "different settings give equal bits"
    failures = []
    for (run, modes), result in zip(runs, results):
        found = bitwise_runs.difference(expected[reference_of(run)], result)
        if found:
            options = itertools.chain(*([value] if isinstance(value, str) else value for value in run), modes)
            failures.append(f"{' '.join(map(str, options))}: {found}")
    print("\n".join(failures[:20]))
    print(f"{len(runs)} runs compared with {len(references)} references: {len(failures)} differ")
    return 1 if failures or not runs else 0


if __name__ == "__main__":
    sys.exit(main())
