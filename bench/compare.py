#!/usr/bin/env python3
"""Tessera beside its peers, in turn in one run: the same models, initial weights, batches, ranks and precision, or the same collectives.

usage: compare.py BUILD [--peer torch] [--torch PYTHON] [--models M,…] [--precisions P,…] [--rounds N] [--steps N] [--minutes N] [--tiny]
       compare.py BUILD --peer torch-cuda [--torch PYTHON] [--rounds N] [--steps N] [--batch N] [--peak TFLOPS]
       compare.py BUILD --peer mpi [--rounds N] [--ranks N,N] [--mib N,N] [--mpirun MPIRUN]

torch: steps on the CPU, alone, beside DDP and beside FSDP2; prints figures, one per line. Models: mlp, gpt, cnn and resnet18, of Tessera's
own layers (default: these); torch_mlp, the same perceptron as a module of libtorch, where BUILD has one (TORCH_DIR names PYTHON's own,
which makes it the same kernels), and what sharding costs there. PyTorch gets what makes it fast: a heap that is kept, gradients as
views of buckets, the fused AdamW.
torch-cuda: tokens per second of train_gpt on one GPU beside PyTorch, compiled, with fused attention. Model FLOP utilisation counts 6 per
parameter and token and 12 · layers · dim · seq per token for attention (PaLM, appendix B), of the peak that --peak states.
mpi: collectives of threads, of processes, and the MPI's own with its heap kept; prints a Markdown table.

PYTHON is an interpreter that has PyTorch; default: the environment variable TESSERA_TORCH_PYTHON, else this one. Without PyTorch there is
nothing to compare, and the benchmark says so.
"""
import argparse
import array
import itertools
import json
import math
import os
import pathlib
import platform
import random
import shlex
import statistics
import subprocess
import sys
import tempfile

import turns

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
PEER = pathlib.Path(__file__).with_name("peer.py")
# Losses may differ as sums in another order do, in bf16 as bf16 does.
TOLERANCE = {"fp32": 2e-3, "bf16": 3e-2}
# train_gpt's preset on a GPU: GPT-2's 50,257 ids, and more up to a multiple of 128, which is as good for the peer's products as for ours.
GPT2 = {"layers": 12, "width": 768, "heads": 12, "seq": 1024, "vocabulary": 50304}
WARM_UP = 10  # steps on a GPU that do not count: compilation, heuristics
LONGEST_STEPS = 120  # seconds that one side of a comparison on the CPU may take
SKIPPED = 77  # the exit code of what cannot run


class Torch:
    """Steps on the CPU."""

    def __init__(self, options, folder):
        self.options, self.folder = options, pathlib.Path(folder)
        self.shapes = TINY if options.tiny else SHAPES
        self.meetings = itertools.count()

    def arguments(self, model, precision, ranks, threads):
        shape = {**self.shapes[model], "ranks": ranks, "threads": threads, "steps": self.options.steps, "warm-up": 3}
        return ["--precision", precision, *itertools.chain(*((f"--{key}", value) for key, value in shape.items())),
                "--weights", self.folder / f"{model}.safetensors"]

    @staticmethod
    def surroundings(model, threads):
        if not model.startswith("torch_"):
            return {}
        return turns.HEAP_KEPT | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}

    def ours(self, model, precision, ranks, parallel, threads):
        command = [pathlib.Path(self.options.build) / f"bench/step_{model}", "--strategy", "fsdp" if parallel == "fsdp" else "ddp",
                   *self.arguments(model, precision, ranks, threads)]
        lines = turns.run(command, self.surroundings(model, threads), timeout=LONGEST_STEPS).splitlines()
        figures = dict(line.split()[:2] for line in lines)
        return float(figures["step"]), float(figures["first-loss"]), float(figures["last-loss"])

    def peer(self, model, precision, ranks, parallel, threads):
        return min(self.peer_with(layout, model, precision, ranks, parallel, threads) for layout in LAYOUTS.get(model, [[]]))

    def peer_with(self, layout, model, precision, ranks, parallel, threads):
        meeting = self.folder / f"meeting{next(self.meetings)}"
        command = [self.options.torch, "-B", PEER, "--model", model.removeprefix("torch_"), "--parallel", parallel,
                   "--meeting", meeting, *layout, *self.arguments(model, precision, ranks, threads)]
        surroundings = self.surroundings("torch_", threads)
        others = [subprocess.Popen(list(map(str, [*command, "--rank", rank])), env=turns.environment(surroundings),
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for rank in range(1, ranks)]
        try:
            found = json.loads(turns.run([*command, "--rank", 0], surroundings, timeout=LONGEST_STEPS).splitlines()[-1])
        finally:
            for other in others:
                other.kill()
                other.wait()
        return 1e3 * statistics.median(found["seconds"]), found["losses"][0], found["losses"][-1]

    def turn(self, case):
        """Milliseconds of both, one after the other."""
        model, precision, how = case
        ours, peer = (side(model, precision, *CASES[how]) for side in (self.ours, self.peer))
        for mine, theirs in zip(ours[1:], peer[1:]):
            if abs(mine - theirs) > TOLERANCE[precision] * abs(mine):
                sys.exit(f"{model} {how} {precision}: losses {ours[1:]} and {peer[1:]}: not the same training")
        return ours[0], peer[0]

    def print_overhead(self):
        """Passes and steps of the sharded module on one rank, over those of the plain one."""
        shape = self.shapes["torch_mlp"]
        table = turns.run([pathlib.Path(self.options.build) / "bench/torch_overhead", shape["width"], shape["layers"], shape["batch"]],
                          self.surroundings("torch_", 1))
        for row in table.splitlines()[3:]:  # below the headings and the plain module
            strategy, _, passes, _, step = row.split()
            print(f"torch_mlp/fp32/{strategy}/passes-over-plain {passes} times")
            print(f"torch_mlp/fp32/{strategy}/step-over-plain {step} times")


def beside_torch(options, version):
    print(f"torch {version} version")
    models = options.models.split(",")
    with tempfile.TemporaryDirectory() as folder:
        torch = Torch(options, folder)
        found = turns.in_turns(options.rounds, itertools.product(models, options.precisions.split(","), CASES), torch.turn, options.minutes)
        for case, rounds in found.items():
            for figure, value, unit in zip(("ours", "torch", "ratio"), turns.against_peer(rounds), ("ms", "ms", "times")):
                print(f"{'/'.join(case)}/{figure} {value:.6g} {unit}")
        if "torch_mlp" in models:
            torch.print_overhead()


def flops_per_token():
    width, layers = GPT2["width"], GPT2["layers"]
    parameters = GPT2["vocabulary"] * width + GPT2["seq"] * width + layers * (12 * width * width + 13 * width) + 2 * width
    return 6 * parameters + 12 * layers * width * GPT2["seq"]


def beside_torch_on_a_gpu(options):
    tokens = options.batch * GPT2["seq"]
    with tempfile.TemporaryDirectory() as folder:
        data = pathlib.Path(folder) / "tokens.bin"
        chance = random.Random(0)
        data.write_bytes(array.array("H", (chance.randrange(GPT2["vocabulary"]) for _ in range((options.steps + 40) * tokens))).tobytes())
        shared = ["--data", data, "--batch", options.batch, "--steps", options.steps]

        def turn(_):
            _, lines = turns.trained([pathlib.Path(options.build) / "trainer/gpt/train_gpt", "--device", "cuda", "--preset", "gpt2-124m",
                                      "--precision", "bf16", *shared, "--eval-every", options.steps, "--quiet"])
            mine = {"seconds": [line["step_seconds"] for line in lines], "losses": [line["loss"] for line in lines]}
            shape = itertools.chain(*((f"--{key}", value) for key, value in GPT2.items()))
            theirs = json.loads(turns.run([options.torch, "-B", PEER, "--model", "gpt", "--device", "cuda", "--rank", 0, "--ranks", 1, "--threads", 1,
                                           "--warm-up", 0, *shared, *shape]).splitlines()[-1])
            # Tokens are random: both begin at log(vocabulary), and neither can learn much.
            if abs(mine["losses"][0] - theirs["losses"][0]) > 1.0 or not all(map(math.isfinite, mine["losses"])):
                sys.exit(f"the losses {mine['losses'][0]} and {theirs['losses'][0]} are not those of the same model")
            return tuple(statistics.median(side["seconds"][WARM_UP:]) for side in (mine, theirs))

        *seconds, ratio = turns.against_peer(turns.in_turns(options.rounds, ["gpt"], turn)["gpt"])
    for name, speed in zip(("ours", "torch"), (tokens / each for each in seconds)):
        print(f"cuda_gpt/{name} {speed:.6g} tokens/s")
        print(f"cuda_gpt/{name}/mfu {speed * flops_per_token() / (options.peak * 1e12):.4g} of {options.peak:g} TFLOP/s")
    print(f"cuda_gpt/ratio {ratio:.4g} times")


def beside_mpi(options):
    ours, peer = (pathlib.Path(options.build) / "bench" / name for name in ("collectives", "mpi_collectives"))
    sizes = options.mib.split(",")

    def turn(ranks):
        mpirun = [options.mpirun, "-n", ranks]
        outputs = (turns.run([ours, "--ranks", ranks, *sizes]), turns.run([*mpirun, ours, *sizes], turns.OPEN_MPI),
                   turns.run([*mpirun, peer, *sizes], turns.OPEN_MPI | turns.HEAP_KEPT))
        lines = [line.split() for text in outputs for line in text.splitlines()]
        return {(backend, collective, mebibytes): float(milliseconds) for backend, _, collective, mebibytes, milliseconds in lines}

    print(f"`{shlex.join(['bench/compare.py', *sys.argv[1:]])}`, {os.cpu_count()} cores, {platform.system()} {platform.release()}, "
          f"median of {options.rounds} rounds, each the median of its runs.\n")
    print("| ranks | collective | MiB | local, ms | mpi, ms | Open MPI's own, ms | mpi's rate / local's | / Open MPI's |")
    print("|---|---|---|---|---|---|---|---|")
    for ranks, rounds in turns.in_turns(options.rounds, options.ranks.split(","), turn).items():
        for backend, *case in rounds[0]:
            if backend == "mpi":
                local, mpi, theirs = turns.medians([tuple(each[who, *case] for who in ("local", "mpi", "peer")) for each in rounds])
                print(f"| {ranks} | {case[0]} | {case[1]} | {local:.3g} | {mpi:.3g} | {theirs:.3g} | {local / mpi:.2f} | {theirs / mpi:.2f} |")


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("build")
    parser.add_argument("--peer", choices=["torch", "torch-cuda", "mpi"], default="torch")
    parser.add_argument("--torch", default=os.environ.get("TESSERA_TORCH_PYTHON", sys.executable))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--minutes", type=float, default=8, help="begins no round that would end later")
    parser.add_argument("--precisions", default="fp32,bf16")
    parser.add_argument("--models", default=",".join(OWN_LAYERS))
    parser.add_argument("--tiny", action="store_true", help="models that take no time")
    parser.add_argument("--batch", type=int, default=32, help="sequences on a GPU")
    parser.add_argument("--peak", type=float, default=989.0, help="of the GPU, dense bf16, TFLOP/s [H100, H200: 989]")
    parser.add_argument("--ranks", default="2,4", help="of collectives")
    parser.add_argument("--mib", default="1,16,256", help="of collectives")
    parser.add_argument("--mpirun", default="mpirun")
    options = parser.parse_args()
    options.steps = options.steps or (40 if options.peer == "torch-cuda" else 7)
    if options.peer == "mpi":
        return beside_mpi(options)
    version = turns.torch_version(options.torch)
    if version is None:
        print(f"skipped: {options.torch} has no PyTorch; set TESSERA_TORCH_PYTHON to an interpreter that has")
        return SKIPPED if options.peer == "torch-cuda" else 0
    return beside_torch(options, version) if options.peer == "torch" else beside_torch_on_a_gpu(options)


if __name__ == "__main__":
    sys.exit(main())
