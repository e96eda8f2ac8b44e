#!/usr/bin/env python3
"""Weights written by one run start another, on any number of ranks and with any strategy, bit for bit.

usage: weights_round_trip_test.py TRAIN_MLP
"""
import math
import pathlib
import struct
import sys
import tempfile

import trainer_runs

MODEL = ["--hidden", 37, "--depth", 2, "--batch", 5, "--threads", 1, "--eval-every", 0]
SHAPES = {"input.weight": [37, 64], "input.bias": [37], "hidden.0.weight": [37, 37], "hidden.0.bias": [37],
          "hidden.1.weight": [37, 37], "hidden.1.bias": [37], "output.weight": [10, 37], "output.bias": [10]}
NOTHING_LEARNED = ["--steps", 1, "--lr", 0]  # the step changes nothing, so the dump must be the file it began with


def main(program):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        first = folder / "first.safetensors"
        trainer_runs.train(program, folder, *MODEL, "--ranks", 3, "--steps", 150, "--lr", 0.005, "--dump-weights", first)
        tensors = trainer_runs.read_safetensors(first)
        assert {name: shape for name, (shape, _) in tensors.items()} == SHAPES, tensors.keys()
        for tensor, (shape, content) in tensors.items():
            values = struct.unpack(f"<{math.prod(shape)}f", content)
            assert all(map(math.isfinite, values)) and any(values), tensor

        losses = {}
        for ranks in [1, 2, 3, 7]:
            for strategy in ["ddp", "zero2", "fsdp"]:
                again = folder / f"{ranks}-{strategy}.safetensors"
                steps = trainer_runs.train(program, folder, *MODEL, *NOTHING_LEARNED, "--ranks", ranks, "--strategy",
                                           strategy, "--init", first, "--dump-weights", again)
                assert trainer_runs.read_safetensors(again) == tensors, f"{ranks} ranks, {strategy}"
                losses.setdefault(ranks, set()).add(steps[0]["loss_bits"])
                assert steps[0]["loss"] < 1.0, "a trained model was expected"
        assert all(len(bits) == 1 for bits in losses.values()), losses

        # A dump may replace the file that the run began with.
        trainer_runs.train(program, folder, *MODEL, "--ranks", 2, "--steps", 3, "--init", first, "--dump-weights", first)
        assert trainer_runs.read_safetensors(first) != tensors
        assert sorted(path.suffix for path in folder.iterdir()) == [".jsonl"] + 13 * [".safetensors"], "files left behind"
    print("12 round trips, bit for bit")


if __name__ == "__main__":
    main(sys.argv[1])
