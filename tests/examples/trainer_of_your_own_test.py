#!/usr/bin/env python3
"""A user's own trainer, in as many lines as the guide says: it learns on any number of ranks, and what the shared trainer
brings works in it: metrics, and a run that is resumed takes the steps of one that was not stopped, bit by bit.

usage: trainer_of_your_own_test.py TRAINER_OF_YOUR_OWN
"""
import json
import pathlib
import sys
import tempfile

import example_runs
import trainer_runs


def losses_of(path):
    return [json.loads(line)["loss_bits"] for line in path.read_text(encoding="utf-8").splitlines()]


def run(program, *options):
    done = trainer_runs.run(program, *options)
    assert done.returncode == 0 and not done.stderr, f"{options}: {done.stdout}{done.stderr}"
    return done.stdout


def check_it_learns(program, folder, ranks):
    metrics = folder / f"{ranks}.jsonl"
    run(program, "--ranks", ranks, "--metrics", metrics)
    losses = [json.loads(line)["loss"] for line in metrics.read_text(encoding="utf-8").splitlines()]
    assert abs(losses[0] - 0.6931) < 1e-3 and losses[-1] < 0.5 * losses[0], f"{ranks} ranks: {losses[0]} to {losses[-1]}"


def check_it_goes_on(program, folder):
    options = ["--ranks", 3, "--steps", 40, "--batch", 7, "--checkpoint-dir", folder / "run", "--save-every", 20]
    run(program, *options[:-4], "--metrics", folder / "whole.jsonl")
    run(program, *options, "--stop-after", 20, "--metrics", folder / "parts.jsonl")
    run(program, *options, "--resume", "--metrics", folder / "parts.jsonl")
    assert losses_of(folder / "parts.jsonl") == losses_of(folder / "whole.jsonl")


def main(program):
    example_runs.check_form(program, most_lines=75)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for ranks in [1, 3]:
            check_it_learns(program, folder, ranks)
        check_it_goes_on(program, folder)


if __name__ == "__main__":
    main(sys.argv[1])
