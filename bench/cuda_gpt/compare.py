#!/usr/bin/env python3
"""Tokens per second of train_gpt on one GPU against PyTorch, compiled, with fused attention: the same GPT-2, batch and
precision, in turn; medians of the later steps. Model FLOP utilisation counts 6 per parameter and token and 12 · layers ·
dim · seq per token for attention (PaLM, appendix B), of the peak that --peak states.

usage: compare.py BUILD [--batch N] [--steps N] [--rounds N] [--peak TFLOPS]    prints figures, one per line
"""
import argparse
import importlib.util
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

# The preset's: GPT-2's 50,257 ids, and more up to a multiple of 128, which is as good for the peer's products as for ours.
SHAPE = {"layers": 12, "dim": 768, "heads": 12, "seq": 1024, "vocabulary": 50304}
SKIPPED = 77  # the exit code of what cannot run
WARM_UP = 10  # steps that do not count: compilation, heuristics
PEER = pathlib.Path(__file__).with_name("peer.py")


def run(command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def ours(options, data, metrics):
    run([pathlib.Path(options.build) / "examples/train_gpt", "--device", "cuda", "--preset", "gpt2-124m", "--precision", "bf16",
         "--data", data, "--batch", options.batch, "--steps", options.steps, "--eval-every", options.steps, "--quiet",
         "--metrics", metrics])
    lines = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    return [line["step_seconds"] for line in lines], [line["loss"] for line in lines]


def theirs(options, data):
    shape = [word for key, value in SHAPE.items() for word in (f"--{key}", value)]
    found = json.loads(run([sys.executable, "-B", PEER, "--data", data, "--batch", options.batch, "--steps", options.steps,
                            *shape]).splitlines()[-1])
    return found["seconds"], found["losses"]


def flops_per_token():
    dim, layers = SHAPE["dim"], SHAPE["layers"]
    parameters = SHAPE["vocabulary"] * dim + SHAPE["seq"] * dim + layers * (12 * dim * dim + 13 * dim) + 2 * dim
    return 6 * parameters + 12 * layers * dim * SHAPE["seq"]


def require_peer():
    """Ends the program where there is nothing to compare with."""
    missing = [name for name in ("numpy", "torch") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"skipped: this Python lacks {' and '.join(missing)} (pip install torch numpy)")
        sys.exit(SKIPPED)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("build")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peak", type=float, default=989.0, help="of the device, dense bf16, TFLOP/s [H100, H200: 989]")
    options = parser.parse_args()
    require_peer()
    import numpy
    tokens = options.batch * SHAPE["seq"]
    with tempfile.TemporaryDirectory() as folder:
        data = pathlib.Path(folder) / "tokens.bin"
        drawn = numpy.random.default_rng(0).integers(0, SHAPE["vocabulary"], (options.steps + 40) * tokens, dtype="<u2")
        drawn.tofile(data)
        rounds = [(ours(options, data, pathlib.Path(folder) / "metrics.jsonl"), theirs(options, data))
                  for _ in range(options.rounds)]
    # Random tokens: both begin at log(vocabulary), and neither can learn much.
    for (_, mine), (_, peers) in rounds:
        if abs(mine[0] - peers[0]) > 1.0 or not all(map(numpy.isfinite, mine)):
            sys.exit(f"the losses {mine[0]} and {peers[0]} are not those of the same model")
    speed = [statistics.median(tokens / statistics.median(each[side][0][WARM_UP:]) for each in rounds) for side in (0, 1)]
    for name, value in zip(("ours", "torch"), speed):
        print(f"cuda_gpt/{name} {value:.6g} tokens/s")
        print(f"cuda_gpt/{name}/mfu {value * flops_per_token() / (options.peak * 1e12):.4g} of {options.peak:g} TFLOP/s")
    print(f"cuda_gpt/ratio {speed[0] / speed[1]:.4g} times")


if __name__ == "__main__":
    main()
