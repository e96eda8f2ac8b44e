#!/usr/bin/env python3
"""Steps of Tessera and of PyTorch, in turn in one run: the same models, initial weights, batches, ranks and precision.

usage: compare.py BUILD [--torch PYTHON] [--models M,…] [--rounds N] [--steps N] [--minutes N] [--tiny]    prints figures, one
       per line

Models: mlp, gpt, cnn and resnet18, of Tessera's own layers (default: these); torch_mlp, the same perceptron as a module of
libtorch, where BUILD has one (TORCH_DIR names PYTHON's own, which makes it the same kernels), and what sharding costs there.
PYTHON is an interpreter that has PyTorch; default: the environment variable TESSERA_TORCH_PYTHON, else this one. Without
PyTorch there is nothing to compare, and the benchmark says so. Both have as many threads. PyTorch gets what makes it fast:
a heap that is kept, gradients as views of buckets, the fused AdamW.
"""
import argparse
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

SHAPES = {"mlp": {"batch": 64, "width": 2048, "layers": 8, "seq": 128},
          "gpt": {"batch": 8, "width": 256, "layers": 4, "seq": 128},
          "cnn": {"batch": 64, "width": 32, "side": 28},
          "resnet18": {"batch": 16, "width": 64, "side": 32}}
OWN_LAYERS = list(SHAPES)
SHAPES["torch_mlp"] = SHAPES["mlp"]
TINY = {"mlp": {"batch": 4, "width": 16, "layers": 2, "seq": 8}, "gpt": {"batch": 2, "width": 16, "layers": 1, "seq": 8},
        "cnn": {"batch": 2, "width": 2, "side": 4}, "resnet18": {"batch": 2, "width": 2, "side": 8}}
TINY["torch_mlp"] = TINY["mlp"]
# How images stand in PyTorch: the faster of these counts.
LAYOUTS = {"cnn": [[], ["--channels-last"]], "resnet18": [[], ["--channels-last"]]}
# The key is the name of their figures: ranks, how they share the work, and the threads of each.
CASES = {"single": (1, "single", 1), "threads": (1, "single", 2), "ddp": (2, "ddp", 1), "fsdp": (2, "fsdp", 1)}
# Without these PyTorch gives large temporaries back to the system at each step, and page faults dominate.
HEAP_KEPT = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "8589934592", "MALLOC_TOP_PAD_": "268435456"}
PEER = pathlib.Path(__file__).with_name("peer.py")
# Losses may differ as sums in another order do, in bf16 as bf16 does.
TOLERANCE = {"fp32": 2e-3, "bf16": 3e-2}


def environment(extra):
    slow = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")  # where these are set, they choose kernels of another machine
    return {key: value for key, value in os.environ.items() if key not in slow} | extra


def has_torch(python):
    probe = "import torch, sys; sys.stdout.write(torch.__version__)"
    try:
        done = subprocess.run([python, "-c", probe], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


class Comparison:
    def __init__(self, options, folder):
        self.options, self.folder = options, pathlib.Path(folder)
        self.shapes = TINY if options.tiny else SHAPES
        self.meetings = itertools.count()

    def arguments(self, model, precision, ranks, threads):
        shape = {**self.shapes[model], "ranks": ranks, "threads": threads, "steps": self.options.steps, "warm-up": 3}
        return ["--precision", precision, *itertools.chain(*((f"--{key}", str(value)) for key, value in shape.items()))]

    @staticmethod
    def surroundings(model, threads):
        if not model.startswith("torch_"):
            return environment({})
        return environment(HEAP_KEPT | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)})

    def weights(self, model):
        return self.folder / f"{model}.safetensors"

    def ours(self, model, precision, ranks, parallel, threads):
        strategy = "fsdp" if parallel == "fsdp" else "ddp"
        command = [pathlib.Path(self.options.build) / f"bench/step_{model}", "--strategy", strategy,
                   *self.arguments(model, precision, ranks, threads), "--weights", self.weights(model)]
        figures = dict(line.split()[:2] for line in checked(command, self.surroundings(model, threads)).splitlines())
        return float(figures["step"]), float(figures["first-loss"]), float(figures["last-loss"])

    def peer(self, model, precision, ranks, parallel, threads):
        return min(self.peer_with(layout, model, precision, ranks, parallel, threads) for layout in LAYOUTS.get(model, [[]]))

    def peer_with(self, layout, model, precision, ranks, parallel, threads):
        meeting = self.folder / f"meeting{next(self.meetings)}"
        command = [self.options.torch, "-B", PEER, "--model", model.removeprefix("torch_"), "--parallel", parallel, "--weights",
                   self.weights(model), "--meeting", meeting, *layout, *self.arguments(model, precision, ranks, threads)]
        surroundings = self.surroundings("torch_", threads)
        others = [subprocess.Popen([*command, "--rank", str(rank)], env=surroundings, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL) for rank in range(1, ranks)]
        try:
            found = json.loads(checked([*command, "--rank", "0"], surroundings).splitlines()[-1])
        finally:
            for other in others:
                other.kill()
                other.wait()
        return 1e3 * found["seconds"], found["losses"][0], found["losses"][-1]

    def round(self, model, precision, case):
        """Milliseconds of both, one after the other."""
        ours, peer = (side(model, precision, *CASES[case]) for side in (self.ours, self.peer))
        for mine, theirs in zip(ours[1:], peer[1:]):
            if abs(mine - theirs) > TOLERANCE[precision] * abs(mine):
                sys.exit(f"{model} {case} {precision}: losses {ours[1:]} and {peer[1:]}: not the same training")
        return ours[0], peer[0]


def report(case, rounds):
    model, precision, how = case
    ours, peer = (statistics.median(each[side] for each in rounds) for side in (0, 1))
    ratio = statistics.median(peer / ours for ours, peer in rounds)
    name = f"{model}/{precision}/{how}"
    print(f"{name}/ours {ours:.6g} ms\n{name}/torch {peer:.6g} ms\n{name}/ratio {ratio:.6g} times")


def print_overhead(options):
    """Passes and steps of the sharded module on one rank, over those of the plain one."""
    shape = (TINY if options.tiny else SHAPES)["torch_mlp"]
    table = checked([pathlib.Path(options.build) / "bench/torch_overhead", shape["width"], shape["layers"], shape["batch"]],
                    Comparison.surroundings("torch_", 1))
    for row in table.splitlines()[3:]:  # below the headings and the plain module
        strategy, _, passes, _, step = row.split()
        print(f"torch_mlp/fp32/{strategy}/passes-over-plain {passes} times")
        print(f"torch_mlp/fp32/{strategy}/step-over-plain {step} times")


def checked(command, surroundings):
    done = subprocess.run(list(map(str, command)), env=surroundings, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("build")
    parser.add_argument("--torch", default=os.environ.get("TESSERA_TORCH_PYTHON", sys.executable))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--minutes", type=float, default=8, help="begins no round that would end later")
    parser.add_argument("--precisions", default="fp32,bf16")
    parser.add_argument("--models", default=",".join(OWN_LAYERS))
    parser.add_argument("--tiny", action="store_true", help="models that take no time")
    options = parser.parse_args()
    version = has_torch(options.torch)
    if version is None:
        print(f"skipped: {options.torch} has no PyTorch; set TESSERA_TORCH_PYTHON to an interpreter that has")
        return
    print(f"torch {version} version")
    with tempfile.TemporaryDirectory() as folder:
        comparison = Comparison(options, folder)
        cases = list(itertools.product(options.models.split(","), options.precisions.split(","), CASES))
        rounds = {case: [] for case in cases}
        start = time.monotonic()
        for index in range(options.rounds):
            if index > 0 and time.monotonic() - start > 60 * options.minutes * index / (index + 1):
                print(f"note: {index} of {options.rounds} rounds, because the machine was slow", file=sys.stderr)
                break
            for case in cases:
                rounds[case].append(comparison.round(*case))
        for case in cases:
            report(case, rounds[case])
    if "torch_mlp" in options.models.split(","):
        print_overhead(options)


if __name__ == "__main__":
    main()
