#!/usr/bin/env python3
"""What `tessera plan` plans for a network on images is what train_vision runs: the same hash, activations and buffers and all.
Options that such a network does not have are refused.

usage: vision_plan_test.py TESSERA TRAIN_VISION
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import plan_runs

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "examples"))
import made_images

# (model, ranks, options of both)
CASES = [("cnn", 1, []), ("cnn", 3, ["--strategy", "ddp", "--precision", "bf16"]), ("resnet18", 2, ["--strategy", "zero2"]),
         ("resnet18", 3, ["--sync-batch-norm"]),
         ("resnet50", 4, ["--strategy", "hsdp", "--replicas", 2]), ("vit-s", 2, ["--optimizer", "sgd", "--prefetch", 2])]


def trained(program, data, model, ranks, options):
    command = [program, "--data", data, "--model", model, "--ranks", ranks, "--batch", 2, "--steps", 1, "--eval-batches", 1,
               "--threads", 1, *options]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = re.search(r"^plan .*; hash ([0-9a-f]{16})$", done.stdout, re.MULTILINE)
    assert found, done.stdout
    return found.group(1)


def check_refused(tool):
    for options, words in [(["--model", "resnet18", "--seq", 5], "--seq is without effect with resnet18"),
                           (["--model", "vit-b", "--sync-batch-norm"], "--sync-batch-norm is without effect with vit-b"),
                           (["--model", "gpt2-124m", "--classes", 5], "--classes is without effect with gpt2-124m"),
                           (["--mlp", "4x4", "--image-size", 32], "--image-size is without effect with --mlp"),
                           (["--model", "resnet50", "--image-size", 4096, "--width", 4096, "--channels", 4096, "--batch", 2**24],
                            "more than 1099511627776 numbers in a micro-batch"),
                           (["--mlp", "4x4", "--width", 32], "--width is without effect with --mlp")]:
        done = subprocess.run([tool, "plan", *map(str, options)], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 2 and words in done.stderr, done
    done = subprocess.run([tool, "plan", "--model", "vit-b", "--image-size", "100"], capture_output=True, text=True, timeout=60,
                          check=False)
    assert done.returncode == 1 and "images of 100 x 100 cannot be cut into patches of 16 x 16" in done.stderr, done


# A machine on which each kind of work has a rate of its own, and memory none.
def machine(folder, **changed):
    path = pathlib.Path(folder) / "toy.json"
    rates = {name: {"forward": 1e12, "backward": 1e12} for name in ("pointwise", "wide", "narrow")}
    path.write_text(json.dumps({
        "tessera_machine": 1, "name": "toy", "about": "round numbers", "ranks_per_host": 4, "peak": {"fp32": 1e12},
        "products": {"fp32": 1e12}, "convolutions": {"fp32": rates | changed}, "memory": 1e20, "collectives": "ring",
        "host": {"latency": 0, "bandwidth": 1e20}}), encoding="utf-8")
    return path


def step_of(tool, folder, *options, **rates):
    return plan_runs.plan(tool, "--batch", 4, *options, "--time", "--machine", machine(folder, **rates))["time"]


def check_times(tool):
    # 4.09 G multiplications of an image forward, as it was published; backward twice that, but for the first one's input.
    with tempfile.TemporaryDirectory() as folder:
        time = step_of(tool, folder, "--model", "resnet50")
        first = 3 * 49 * 64 * 112 * 112
        wanted = 2 * 4 * (3 * 4.089e9 - first)
        assert abs(time["model_flops"] - wanted) < 0.002 * wanted, (time["model_flops"], wanted)
        assert abs(time["step_seconds"] * 1e12 - time["model_flops"]) < 1e-3 * wanted, time
        # The small network has 1 and 32 channels of 3 x 3, and two linear layers.
        small = ["--model", "cnn", "--image-size", 28, "--channels", 1, "--classes", 10]
        narrow, wide = 2 * 4 * 9 * 28 * 28 * 32, 2 * 4 * 9 * 14 * 14 * 32 * 64
        linear = 2 * 4 * (7 * 7 * 64 * 128 + 128 * 10)
        steps = [step_of(tool, folder, *small, **rates)["step_seconds"] for rates in (
            {}, {"narrow": {"forward": 5e11, "backward": 1e12}}, {"wide": {"forward": 1e12, "backward": 5e11}})]
        for found, flops in zip(steps, [2 * narrow + 3 * (wide + linear), 3 * narrow + 3 * (wide + linear),
                                        2 * narrow + 5 * wide + 3 * linear]):
            assert abs(found * 1e12 - flops) < 1e-3 * flops, (steps, flops)
        assert plan_runs.plan(tool, *small, "--width", 8, "--time", "--machine", "h100x8")["time"]["step_seconds"] > 0


def main(tool, program):
    with tempfile.TemporaryDirectory() as folder:
        made_images.write_cifar10(folder, [8], 4)
        for model, ranks, options in CASES:
            planned = plan_runs.plan(tool, "--model", model, "--image-size", 32, "--classes", 10, "--batch", 2, "--world", ranks,
                                     *options)
            found = trained(program, f"cifar10:{folder}", model, ranks, options)
            assert planned["hash"] == found, (model, ranks, options, planned["hash"], found)
            print(f"{model} on {ranks} ranks: {found}")
    check_refused(tool)
    check_times(tool)


if __name__ == "__main__":
    main(*sys.argv[1:])
