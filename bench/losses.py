#!/usr/bin/env python3
"""Held-out losses of the small GPT on the shipped text, by what is trained how: cases that differ in options alone, seed by seed.

usage: losses.py BUILD --case NAME OPTIONS --case NAME OPTIONS … [--with OPTIONS] [--seeds N] [--figure FILE.svg] [--quick]
                                                                                                   BUILD: the build directory
The first case is what the others are compared with. --with: options of all, `--batch 16 --lr 0.002 --threads 1` if not given.
For example: losses.py build --case AdamW "--optimizer adamw" --case Muon "--optimizer muon" --seeds 3 --figure muon.svg
"""
import argparse
import pathlib
import statistics

import turns


def curve(given, options, seed):
    """{step: held-out loss} of one run."""
    steps, every = (40, 10) if given.quick else (1000, 100)
    _, lines = turns.trained([given.build / "trainer/gpt/train_gpt", "--sample", 0, "--steps", steps, "--eval-every", every, "--eval-batches", 0,
                              "--seed", seed, "--quiet", *given.options.split(), *options.split()])
    return {line["step"]: line["held_out_loss"] for line in lines if "held_out_loss" in line}


def show(curves, seeds):
    names = list(curves)
    print("| steps | " + " | ".join(names) + " |\n|--:|" + "--:|" * len(names))
    medians = {name: {step: statistics.median(run[step] for run in runs) for step in runs[0]} for name, runs in curves.items()}
    for step in medians[names[0]]:
        print(f"| {step} | " + " | ".join(f"{medians[name][step]:.4f}" for name in names) + " |")
    print("\n| seed, last loss | " + " | ".join(names) + " |\n|--:|" + "--:|" * len(names))
    for index in range(seeds):
        last = {name: list(runs[index].values())[-1] for name, runs in curves.items()}
        base = last[names[0]]
        beside = [f"{last[name]:.4f}" + (f" ({100 * (last[name] / base - 1):+.2f} %)" if name != names[0] else "") for name in names]
        print(f"| {index + 1} | " + " | ".join(beside) + " |")
    base = medians[names[0]]
    for name in names[1:]:
        reached = [step for step, loss in medians[name].items() if loss <= list(base.values())[-1]]
        print(f"\n{name} has the last loss of {names[0]} after {reached[0] if reached else 'more than these'} of {list(base)[-1]} steps.")
    return medians


def draw(medians, given):
    note = f"median of {given.seeds} seed{'s' if given.seeds > 1 else ''}, {given.options.replace('--', '')} for all"
    chart = {"kind": "lines", "title": "Held-out loss of a small GPT on the shipped text", "x": {"label": "steps"}, "y": {"label": "nats a byte"},
             "note": note, "series": [{"name": name, "x": list(points), "y": list(points.values())} for name, points in medians.items()]}
    turns.draw(chart, given.figure)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--case", nargs=2, action="append", required=True)
    parser.add_argument("--with", dest="options", default="--batch 16 --lr 0.002 --threads 1")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--figure", type=pathlib.Path)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    curves = {name: [] for name, _ in given.case}
    for seed in range(1, given.seeds + 1):
        for name, options in given.case:
            curves[name].append(curve(given, options, seed))
    medians = show(curves, given.seeds)
    if given.figure:
        draw(medians, given)


if __name__ == "__main__":
    main()
