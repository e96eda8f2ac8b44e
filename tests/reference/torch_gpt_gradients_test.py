#!/usr/bin/env python3
"""Every parameter's gradient in train_gpt is PyTorch's, to 1e-5 of the parameter's largest: a step of plain gradient descent with a
large rate is the gradient.

usage: torch_gpt_gradients_test.py TRAIN_GPT
"""
import pathlib
import sys
import tempfile

import torch

import torch_gpt
import trainer_runs

TOLERANCE = 1e-5
RATE = 64  # makes the step large beside the weights, whose rounding then hides nothing of it
OPTIONS = ["--strategy", "fsdp", "--optimizer", "sgd", "--weight-decay", 0, "--clip", 0, "--warmup", 0, "--steps", 2,
           "--stop-after", 1, "--lr", RATE, "--min-lr", RATE]


def expected_gradients(setting):
    model = torch_gpt.Gpt().double()
    model.load_state_dict(setting.weights)
    model.loss(setting.sequences).backward()
    return {name: value.grad for name, value in model.named_parameters()}


def found_gradients(program, folder, setting, *spread):
    after = pathlib.Path(folder) / "after.safetensors"
    trainer_runs.train(program, folder, *OPTIONS, *setting.options(*spread), "--dump-weights", after)
    weights = torch_gpt.read_weights(after)
    assert weights.keys() == setting.weights.keys()
    return {name: (before.double() - weights[name].double()) / RATE for name, before in setting.weights.items()}


def main(program):
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        setting = torch_gpt.Setting(folder)
        expected = expected_gradients(setting)
        for ranks, batch, accumulate in [(1, 20, 1), (2, 10, 1), (5, 2, 2)]:
            found = found_gradients(program, folder, setting, ranks, batch, accumulate)
            distance = {name: ((found[name] - value).abs().max() / value.abs().max()).item()
                        for name, value in expected.items()}
            worst = max(distance, key=distance.get)
            print(f"{ranks} ranks: {len(distance)} parameters, at most {distance[worst]:.1e} ({worst})")
            failures += [f"{ranks} ranks, {name}: {far:.1e}" for name, far in distance.items() if not far <= TOLERANCE]
    print("\n".join(f"FAILED: {failure}" for failure in failures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
