#!/usr/bin/env python3
"""What granules cost: steps of the same micro-batches with and without them, on two ranks under fsdp, and what of them is the norm.

Runs take turns, in several rounds, and a ratio is of one round; the median counts. Norms are from a traced run of each, beside
them: seconds of the reduce stream, which run while windows compute but behind the last one.

usage: granules.py BUILD [--quick] [--rounds N]    BUILD: the build directory
"""
import argparse
import pathlib
import statistics

import turns

RANKS, ROUNDS_OF_A_STEP = 2, 2
WARM_UP = 3  # steps at the beginning that do not count
WAYS = {"plain": ["--accumulate", ROUNDS_OF_A_STEP, "--accumulate-mode", "reduced"], "granules": ["--granules", RANKS * ROUNDS_OF_A_STEP]}


def models(quick):
    mlp = {"--hidden": 256, "--depth": 2, "--batch": 8} if quick else {"--hidden": 2048, "--depth": 6, "--batch": 64}
    gpt = {"--layers": 1, "--dim": 64, "--heads": 2, "--seq": 32, "--batch": 2} if quick else {
        "--layers": 6, "--dim": 384, "--heads": 6, "--seq": 128, "--batch": 8}
    return {"mlp": ["trainer/mlp/train_mlp", "--data", "synthetic", *turns.words(mlp)],
            "gpt": ["trainer/gpt/train_gpt", "--sample", 0, *turns.words(gpt)]}


def measure(build, model, way, steps):
    """(seconds of a step, seconds of its norms on rank 0)"""
    program, *options = model
    command = [build / program, *options, "--ranks", RANKS, "--threads", 1, "--strategy", "fsdp", "--steps", steps, "--eval-every", 0,
               "--clip", 1, "--quiet", *WAYS[way]]
    _, lines = turns.trained(command)
    norms = {}
    for event in turns.traced(command):
        about = event.get("args", {})
        if event.get("pid") == 0 and about.get("kind") == "sum of squares":
            norms[about["step"]] = norms.get(about["step"], 0.0) + event["dur"] / 1e6
    return statistics.median(line["step_seconds"] for line in lines[WARM_UP:]), statistics.median(norms.values())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    steps = 8 if given.quick else 15
    print("| model | plain, ms | with granules, ms | ratio | norms, ms | exact norms, ms |\n|---|--:|--:|--:|--:|--:|")
    for name, model in models(given.quick).items():
        found = turns.in_turns(given.rounds, list(WAYS), lambda way: measure(given.build, model, way, steps))
        ratio = statistics.median(with_them[0] / plain[0] for plain, with_them in zip(found["plain"], found["granules"]))
        (plain, norm), (granules, exact) = (turns.medians(found[way]) for way in WAYS)
        print(f"| {name} | {1e3 * plain:.1f} | {1e3 * granules:.1f} | {ratio:.2f} | {1e3 * norm:.2f} | {1e3 * exact:.2f} |")


if __name__ == "__main__":
    main()
